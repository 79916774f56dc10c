#!/bin/bash
# Runs the workspace's tests and tells how many could not run here, and how long each part took.
#
# usage: scripts/test.sh [cargo test options]
#
# First the tests of the crates. Then, where a mount is possible: power cuts through it, at chosen moments and twenty at
# random ones, a user who takes all there is beside one who works, and what users do to each other's files, beside ext4.
# Then come random programs of processes that share a volume by SQLite's VFS, replicas in a folder and on a server that
# speaks S3, volumes on devices that are reached by a network, what the documents tell their readers to type, packages
# of what that has built in a fresh root, the Python package from the wheel that the README's commands have built, and
# what is neither code nor run (tests/papers).
#
# What waits most of its time runs beside what builds: the documents' commands beside power cuts and replicas, the
# papers beside packages and Python.
#
# A test that lacks /dev/fuse, root, a loop device or a program writes one line "skipped: TEST: why" to the real
# standard error (which the harness does not capture) and returns. This script counts those lines.
set -uo pipefail
cd "$(dirname "$0")/.." || exit

# What scripts/setup.sh has taken out of packages that it does not install, and what it has installed for Node.
tools=$(realpath -m "${CARGO_TARGET_DIR:-target}")/tools
PATH=$PATH:$tools/bin
export NODE_PATH=$tools/node/node_modules${NODE_PATH:+:$NODE_PATH}
# A machine that runs this once needs no state for a second compilation, which would take gigabytes.
[ -z "${CI:-}" ] || export CARGO_INCREMENTAL=${CARGO_INCREMENTAL:-0}

# Tests on a disk that gets full fail one after the other, each with a reason of its own.
needed=16
target=${CARGO_TARGET_DIR:-target}
mkdir -p "$target"
for place in "$target" "${TMPDIR:-/tmp}"; do
    free=$(df --output=avail -BG "$place" | tr -dc '0-9')
    [ -d "$target/debug" ] || [ "$free" -ge "$needed" ] ||
        echo "warning: $free GiB are free at $place; the tests take about $needed" >&2
done

log=$(mktemp)
declare -A running=()
# shellcheck disable=SC2317 # a trap calls it
clean_up() {
    for group in "${running[@]}"; do kill -- "-$group" 2>/dev/null; done
    rm -rf "$log" "$log".*
}
trap clean_up EXIT
trap 'exit 130' INT
trap 'exit 143' TERM HUP

# beside NAME COMMAND...: in the background, until joined NAME, which shows what it printed and returns its status.
beside() {
    local name=$1
    shift
    # A group of its own, which ends with this script.
    set -m
    (began=$SECONDS; "$@"; code=$?; echo "took $((SECONDS - began)) s: $name"; exit "$code") </dev/null >"$log.$name" 2>&1 &
    set +m
    running[$name]=$!
}
joined() {
    local code=0
    wait "${running[$1]}" || code=$?
    unset "running[$1]"
    tee -a "$log" <"$log.$1"
    return "$code"
}

# took WHAT: since it was asked last.
began=$SECONDS
took() {
    echo "took $((SECONDS - began)) s: $1" | tee -a "$log"
    began=$SECONDS
}

# Packages of what the README's readers have built, installed, used, upgraded and purged in a fresh root.
checkout=$(realpath -m "${CARGO_TARGET_DIR:-target}")/documents/checkout
packages() {
    if ! [ -x "$checkout/dist/bin/syncline-bench" ]; then
        echo "skipped: packages: the documents' commands were not run"
    elif ! command -v dh >/dev/null 2>&1; then
        echo "skipped: packages: debhelper is not installed"
    else
        local target=${checkout%/documents/checkout}
        tests/packages/install "$checkout" &&
            DEB_BUILD_OPTIONS=noautodbgsym CARGO_TARGET_DIR=$target make --no-print-directory -C "$checkout" deb >"$target/deb.log" 2>&1 &&
            tests/packages/run --here "$checkout/dist/deb" &&
            tests/packages/boot "$checkout/dist/deb" && return
        tail -n 20 "$target/deb.log"
        return 1
    fi
}

# What comes from registries and takes no part in what is compiled meanwhile.
environment() {
    scripts/python.sh environment
    tests/replica/servers.sh prepare
}
beside environment environment

# Documentation examples run as well: plain `cargo test` builds and runs all of them. The command is tested by itself,
# as it is shipped: cargo would give it every feature that another crate of the same call asks for.
${CARGO:-cargo} test --workspace --exclude syncline-cli --features syncline-replica-store/aws,syncline/replica --locked \
    --no-fail-fast "$@" 2>&1 | tee "$log"
status=${PIPESTATUS[0]}
${CARGO:-cargo} test -p syncline-cli --locked --no-fail-fast "$@" 2>&1 | tee -a "$log"
[ "${PIPESTATUS[0]}" = 0 ] || status=1
took crates
joined environment
beside documents tests/documents --keep

profile=debug
[[ " $* " == *" --release "* ]] && profile=release
binary=$(realpath -m "${CARGO_TARGET_DIR:-target}")/$profile/syncline-lab
if ! [ -x "$binary" ]; then
    echo "skipped: power cuts: the command was not built"
elif ! [ -w /dev/fuse ]; then
    echo "skipped: power cuts: /dev/fuse cannot be opened; load the fuse module or run where it is allowed"
elif ! command -v python3 >/dev/null 2>&1; then
    echo "skipped: power cuts: python3 is not installed"
else
    SYNCLINE=$binary tests/crash/scenarios.py >"$log.cuts" 2>&1
    grep -v '^ok ' "$log.cuts"
    SYNCLINE=$binary tests/crash/random_cuts.py --cuts 20 2>&1
    SYNCLINE=$binary tests/run-workloads --quick hostile_user 2>&1
fi 2>&1 | tee -a "$log"
if ! [ -x "$binary" ] || ! command -v python3 >/dev/null 2>&1; then
    echo "skipped: processes: the command was not built, or python3 is not installed"
else
    SYNCLINE=$binary tests/crash/processes.py --rounds 20 2>&1
fi | tee -a "$log"
grep -q '^processes .* passed, 0 failed\|^skipped: processes' "$log" || status=1
if ! [ -x "$binary" ] || ! [ -w /dev/fuse ] || [ "$(id -u)" != 0 ]; then
    echo "skipped: users: needs root, /dev/fuse and the command"
else
    SYNCLINE=$binary bash tests/workloads/users.sh | sed 's/^skip  /skipped: /'
    [ "${PIPESTATUS[0]}" = 0 ] || echo "users: failed"
fi 2>&1 | tee -a "$log"
grep -q '^users: failed' "$log" && status=1
if ! [ -x "$binary" ] || ! command -v python3 >/dev/null 2>&1; then
    echo "skipped: replicas: the command was not built, or python3 is not installed"
else
    # With Ceph, which takes minutes and much memory, where somebody has asked for everything.
    SYNCLINE=$binary tests/replica/servers.sh folder moto nbdkit ${SYNCLINE_TEST_FULL:+rbd} || echo "replicas: failed"
fi 2>&1 | tee -a "$log"
grep -q '^replicas: failed' "$log" && status=1
for part in 'crash scenarios' 'random cuts' 'workloads on syncline'; do
    grep -q "^$part .* passed, 0 failed" "$log" || grep -q '^skipped: power cuts' "$log" || status=1
done

took "power cuts, processes, users, replicas"
joined documents || status=1
began=$SECONDS
# The pages that the README's commands have made are looked at as well.
[ ! -d "$checkout/dist/man" ] || export PAGES=$log.pages
[ -z "${PAGES:-}" ] || cp -r "$checkout/dist/man" "$PAGES"
beside papers tests/papers
packages 2>&1 | tee -a "$log"
[ "${PIPESTATUS[0]}" = 0 ] || status=1
rm -rf "$checkout"
took packages
python=$(realpath -m "${CARGO_TARGET_DIR:-target}")/python/venv/bin/python
if [ -x "$python" ] && "$python" -c 'import syncline' 2>/dev/null; then
    scripts/python.sh installed 2>&1 | tee -a "$log"
else
    scripts/python.sh test 2>&1 | tee -a "$log"
fi
[ "${PIPESTATUS[0]}" = 0 ] || status=1
took python
joined papers || status=1

awk '
    /^test result:/ { passed += $4; failed += $6; ignored += $8 }
    END { printf "\nall crates: %d passed, %d failed, %d ignored\n", passed, failed, ignored }
' "$log"
skipped=$(grep -c 'skipped: ' "$log")
if [ "$skipped" -gt 0 ]; then
    echo "of these, $skipped could not do their work here:"
    grep -o 'skipped: .*' "$log" | sed 's/^skipped: [^:]*: //' | sort | uniq -c | sort -rn
else
    echo "none was skipped"
fi
exit "$status"
