# What every workload script shares: set-up, a volume on a loop device, cases and their summary.
#
# A script sources this file, calls `need` for its programs, `make_volume` for its filesystem, `run_case` for each thing
# it verifies, and `finish` at its end. Everything made here is removed when the script ends, however it ends.
#
# BACKEND   syncline (default), ext4, xfs or btrfs: the same scripts run on a filesystem known to be right, which tells
#           a wrong script from a wrong filesystem.
# SYNCLINE  the command under test (default: the newest build in this workspace).
# SCALE     quick (default) or full.
# SCRATCH   a directory on a real disk with room for the images (default: /var/tmp).
# MOUNT_OPTIONS  further mount options.
#
# shellcheck shell=bash

[ "${BASH_SOURCE[0]}" != "$0" ] || { echo "lib.sh is sourced by the workloads, not run" >&2; exit 2; }

PATH=$PATH:/usr/sbin:/sbin
TESTS=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
TOOLS=$TESTS/tools
BACKEND=${BACKEND:-syncline}
SCALE=${SCALE:-quick}
SCRATCH=${SCRATCH:-/var/tmp}
MOUNT_OPTIONS=${MOUNT_OPTIONS:-}
NAME=$(basename "$0" .sh)
export BACKEND SCALE SCRATCH TOOLS
export PYTHONDONTWRITEBYTECODE=1

PASSED=0
FAILED=0
SKIPPED=0
FINISHED=
IMAGE=
DEVICE=
MOUNTED=
# What a daemon may take: the default of option memory=, unless MOUNT_OPTIONS says otherwise.
MEMORY_MIB=256
[[ $MOUNT_OPTIONS =~ memory=([0-9]+)M ]] && MEMORY_MIB=${BASH_REMATCH[1]}
# Programs that a script has started in the background.
SERVERS=()

# What a case returns when it cannot run here.
SKIP=77

# quick_or_full A B: A in a quick run, B in a full one.
quick_or_full() {
    if [ "$SCALE" = full ]; then echo "$2"; else echo "$1"; fi
}

syncline_command() {
    if [ -n "${SYNCLINE:-}" ]; then
        echo "$SYNCLINE"
        return
    fi
    local target=${CARGO_TARGET_DIR:-$TESTS/../target} newest=
    local candidate
    for candidate in "$target/release/syncline-lab" "$target/debug/syncline-lab"; do
        if [ -x "$candidate" ] && { [ -z "$newest" ] || [ "$candidate" -nt "$newest" ]; }; then
            newest=$candidate
        fi
    done
    echo "${newest:-syncline}"
}

# A whole script that cannot run counts as one skipped case.
skip_all() {
    echo "skip  $NAME: $*"
    SKIPPED=$((SKIPPED + 1))
    finish
}

# need COMMAND=PACKAGE...: installs what is missing where that is possible; else the script is skipped.
need() {
    local pair missing=()
    for pair in "$@"; do
        command -v "${pair%%=*}" >/dev/null 2>&1 || missing+=("${pair#*=}")
    done
    [ ${#missing[@]} -eq 0 ] && return
    if [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null 2>&1; then
        DEBIAN_FRONTEND=noninteractive apt-get -qq install -y --no-install-recommends "${missing[@]}" \
            >/dev/null 2>&1 || true
    fi
    for pair in "$@"; do
        command -v "${pair%%=*}" >/dev/null 2>&1 || skip_all "${pair%%=*} is missing; install the package ${pair#*=}"
    done
}

# Removes what the script made. A hung daemon is killed, which gives its users an error instead of a hang.
clean_up() {
    local status=$?
    set +e
    trap - EXIT
    [ -n "$FINISHED" ] || echo "FAIL  $NAME: ended before its summary (exit $status)"
    local server
    for server in "${SERVERS[@]}"; do
        kill -9 "$server" 2>/dev/null
    done
    if [ -n "${MNT:-}" ]; then
        if [ -n "$MOUNTED" ]; then
            [ "$BACKEND" = syncline ] && kill_daemon
            umount -l "$MNT" 2>/dev/null
        fi
        umount -l "$MNT" 2>/dev/null
    fi
    [ -n "$DEVICE" ] && detach_loop "$DEVICE"
    # A failed run keeps its image and logs when asked to.
    if [ -n "${WORK:-}" ]; then
        if [ -n "${KEEP:-}" ] && [ "$FAILED" -gt 0 ]; then
            echo "kept: $WORK"
        else
            rm -rf "$WORK"
        fi
    fi
    exit "$status"
}

set_up() {
    if [ "$(id -u)" != 0 ]; then
        skip_all "needs root for loop devices and mounts"
    fi
    WORK=$(mktemp -d "$SCRATCH/syncline-$NAME.XXXXXX")
    # Servers that run as another user reach the mount through this directory.
    chmod 0755 "$WORK"
    trap clean_up EXIT
    trap 'exit 130' INT
    trap 'exit 143' TERM HUP
    MNT=$WORK/mnt
    LOG=$WORK/daemon.log
    mkdir "$MNT"
    SYNCLINE=$(syncline_command)
    export SYNCLINE WORK MNT
    if [ "$BACKEND" = syncline ]; then
        [ -e /dev/fuse ] || skip_all "there is no /dev/fuse"
        command -v "$SYNCLINE" >/dev/null 2>&1 || skip_all "no syncline-lab command; run make lab"
    fi
}

# write_image FILE MEBIBYTES: an image whose every block is written. (Unwritten extents of the host file would turn each
# flush into a journal commit of the host.) An image given by the runner is used again if it is large enough.
write_image() {
    local bytes=$(($2 * 1048576))
    if [ -n "${SHARED_IMAGE:-}" ] && [ -f "$SHARED_IMAGE" ] && [ "$(stat -c %s "$SHARED_IMAGE")" -ge "$bytes" ]; then
        IMAGE=$SHARED_IMAGE
        return
    fi
    IMAGE=$1
    dd if=/dev/zero of="$IMAGE" bs=4M count="$(($2 / 4))" oflag=direct status=none 2>/dev/null ||
        dd if=/dev/zero of="$IMAGE" bs=4M count="$(($2 / 4))" conv=fsync status=none
}

# attach_loop FILE [MEBIBYTES]: sets DEVICE; only the first MEBIBYTES of the file are seen.
attach_loop() {
    local limit=()
    [ -n "${2:-}" ] && limit=(--sizelimit "$(($2 * 1048576))")
    DEVICE=$(losetup --find --show --direct-io=on "${limit[@]}" "$1" 2>/dev/null) ||
        DEVICE=$(losetup --find --show "${limit[@]}" "$1") ||
        skip_all "no loop device to be had"
}

detach_loop() {
    local try
    for try in 1 2 3 4 5 6 7 8 9 10; do
        losetup --detach "$1" 2>/dev/null && break
        losetup "$1" >/dev/null 2>&1 || break
        sleep "0.$try"
    done
    DEVICE=
}

# make_volume MEBIBYTES [mkfs option...]: a formatted and mounted volume of this size on a loop device.
make_volume() {
    local mebibytes=$1
    shift
    write_image "$WORK/disk.img" "$mebibytes"
    attach_loop "$IMAGE" "$mebibytes"
    format_volume "$@"
    mount_volume
}

# Options after the first are for syncline only.
format_volume() {
    case $BACKEND in
        syncline) "$SYNCLINE" mkfs --quiet --force "$@" "$DEVICE" ;;
        ext4) mkfs.ext4 -q -F -E nodiscard -O large_dir -m 0 -b 4096 -i 8192 "$DEVICE" ;;
        xfs) mkfs.xfs -q -f -K "$DEVICE" ;;
        btrfs) mkfs.btrfs -q -f -K "$DEVICE" ;;
        *) echo "$NAME: no such backend: $BACKEND" >&2; exit 2 ;;
    esac
}

# mount_volume [OPTIONS]
mount_volume() {
    local options=${1:-}
    options=${MOUNT_OPTIONS:+$MOUNT_OPTIONS${options:+,}}$options
    case $BACKEND in
        syncline) "$SYNCLINE" mount -o "log=$LOG${options:+,$options}" "$DEVICE" "$MNT" ;;
        *) mount ${options:+-o "$options"} "$DEVICE" "$MNT" ;;
    esac
    mountpoint -q "$MNT" || { echo "mount returned, but $MNT is no mount point"; return 1; }
    MOUNTED=1
}

unmount_volume() {
    case $BACKEND in
        syncline)
            note_memory
            "$SYNCLINE" umount "$MNT"
            ;;
        *) umount "$MNT" ;;
    esac
    MOUNTED=
}

# The caches of the kernel and of the daemon are gone afterwards: what is read now comes from the device.
remount_volume() {
    unmount_volume
    mount_volume "$@"
}

# The daemon that serves $MNT: the process whose command line names our mount point.
daemon_pid() {
    local entry
    for entry in /proc/[0-9]*; do
        # A process may end while we look.
        if [ "$(readlink "$entry/exe" 2>/dev/null)" = "$(readlink -f "$(command -v "$SYNCLINE")")" ] &&
            tr '\0' '\n' <"$entry/cmdline" 2>/dev/null | grep -qxF -- "$MNT"; then
            basename "$entry"
        fi
    done
}

# Notes the most memory that a daemon of this script has had so far (the kernel's high-water mark, in KiB).
note_memory() {
    local pid
    for pid in $(daemon_pid); do
        sed -n 's/^VmHWM:[[:space:]]*\([0-9]*\) kB$/\1/p' "/proc/$pid/status" >>"$WORK/memory" 2>/dev/null || true
    done
}

# The daemon keeps to its bound (option memory=, 256 MiB unless given), whatever the workload.
bounded_memory() {
    local peak
    peak=$(sort -n "$WORK/memory" | tail -n 1)
    echo "$((peak / 1024)) MiB" >&3
    [ "$peak" -le $((MEMORY_MIB * 1024)) ] || fail "the daemon took $peak KiB, the bound is $MEMORY_MIB MiB"
}

# The power cut: with mount option `volatile` everything that no flush covered is lost with the process.
kill_daemon() {
    local pid
    pid=$(daemon_pid)
    note_memory
    [ -n "$pid" ] || { echo "no daemon found for $MNT"; return 1; }
    # shellcheck disable=SC2086 # one word or several
    kill -9 $pid
    while kill -0 $pid 2>/dev/null; do sleep 0.02; done
}

# Takes away the mount that a killed daemon left.
drop_dead_mount() {
    local try
    for try in 1 2 3 4 5 6 7 8 9 10; do
        umount "$MNT" 2>/dev/null && break
        mountpoint -q "$MNT" 2>/dev/null || stat "$MNT" >/dev/null 2>&1 && break
        sleep "0.$try"
    done
    mountpoint -q "$MNT" 2>/dev/null && umount -l "$MNT"
    MOUNTED=
}

check_volume() {
    case $BACKEND in
        syncline) "$SYNCLINE" check "$@" "$DEVICE" ;;
        ext4) e2fsck -fn "$DEVICE" ;;
        xfs) xfs_repair -n "$DEVICE" ;;
        btrfs) btrfs check --readonly "$DEVICE" ;;
    esac
}

# manifest DIRECTORY: one line for each thing in the tree: type, mode, owner, size, links, content's hash, path.
manifest() {
    python3 "$TOOLS/manifest.py" "$1"
}

# fail SENTENCE: ends the case.
fail() {
    echo "$*"
    exit 1
}

# expect WANT GOT WHAT
expect() {
    [ "$1" = "$2" ] || fail "$3: want $1, got $2"
}

# run_case NAME FUNCTION [ARGUMENT...]: runs in a subshell with -e; its output is shown only when it fails. What it
# prints on descriptor 3 is shown after its name. The state of the mount is carried back.
run_case() {
    local name=$1 status start end
    shift
    start=$(date +%s%N)
    rm -f "$WORK/note" "$WORK/mounted"
    set +e
    (
        set -euo pipefail
        trap 'echo "$MOUNTED" >"$WORK/mounted"' EXIT
        "$@"
    ) >"$WORK/case.log" 2>&1 3>"$WORK/note"
    status=$?
    set -e
    MOUNTED=$(cat "$WORK/mounted" 2>/dev/null || echo 1)
    end=$(date +%s%N)
    local seconds note
    seconds=$(awk "BEGIN { printf \"%.1f\", ($end - $start) / 1e9 }")
    note=$(tr '\n' ' ' <"$WORK/note")
    case $status in
        0)
            PASSED=$((PASSED + 1))
            echo "ok    $NAME: $name (${seconds}s)${note:+ $note}"
            ;;
        "$SKIP")
            SKIPPED=$((SKIPPED + 1))
            echo "skip  $NAME: $name: $(tail -n 1 "$WORK/case.log")"
            ;;
        *)
            FAILED=$((FAILED + 1))
            echo "FAIL  $NAME: $name (${seconds}s, exit $status)${note:+ $note}"
            tail -n 25 "$WORK/case.log" | sed 's/^/      | /'
            if [ "$BACKEND" = syncline ] && [ -s "$LOG" ]; then
                grep -E 'WARN|ERROR|panic' "$LOG" | tail -n 10 | sed 's/^/      daemon | /' || true
            fi
            ;;
    esac
}

# Ends the script: the volume is unmounted, must be clean, and the summary is printed.
finish() {
    if [ -n "$MOUNTED" ]; then
        run_case "unmount" unmount_volume
    fi
    if [ -n "$DEVICE" ] && [ -z "$MOUNTED" ]; then
        run_case "check is clean" check_volume
    fi
    if [ -n "${WORK:-}" ] && [ -s "$WORK/memory" ]; then
        run_case "memory of the daemon" bounded_memory
    fi
    FINISHED=1
    if [ -n "${TALLY:-}" ]; then
        echo "$PASSED $FAILED $SKIPPED" >>"$TALLY"
    else
        echo "$PASSED passed, $FAILED failed, $SKIPPED skipped"
    fi
    [ "$FAILED" = 0 ]
    exit
}

set_up
