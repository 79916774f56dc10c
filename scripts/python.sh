#!/bin/bash
# Builds the Python wheel, and tests and measures it as a user has it: installed into a fresh environment.
#
# usage: scripts/python.sh wheel            dist/syncline-*.whl, optimised
#        scripts/python.sh wheel-arm64      dist/arm64/syncline-*.whl, the same for arm64, given a linker for it
#        scripts/python.sh test             a wheel for tests; then tests, doctests, docs/python.md's programs, mypy
#        scripts/python.sh environment      the environment of the tests, with what they use, without the package
#        scripts/python.sh installed        the tests of the package that is installed there
#        scripts/python.sh bench [options]  crates/python/bench/compare.py, optimised
#
# PYTHON names the interpreter (python3). Everything that is installed lies below the target directory, and comes from
# where pip is told to look. What cannot be had makes tests skip, with a line "skipped: TEST: why" each.
set -uo pipefail
cd "$(dirname "$0")/.." || exit

what=${1:?usage: scripts/python.sh wheel|wheel-arm64|test|environment|installed|bench}
shift
python=${PYTHON:-python3}
target=$(realpath -m "${CARGO_TARGET_DIR:-target}")
place=$target/python
crate=crates/python

# Without a tool of the build there is nothing to test. On a machine without a network the project is not to blame.
cannot() {
    echo "skipped: python: $1"
    case $what in wheel* | bench) exit 1 ;; esac
    exit 0
}

environment() {
    rm -rf "$1"
    "$python" -m venv "$1" 2>/dev/null || cannot "no virtual environment can be made; install python3-venv"
}

install() {
    local environment=$1
    shift
    "$environment/bin/python" -m pip --quiet --disable-pip-version-check install "$@" 2>&1 | tail -n 3
    return "${PIPESTATUS[0]}"
}

command -v "$python" >/dev/null 2>&1 || cannot "$python is not installed"

if ! [ -x "$place/tools/bin/maturin" ]; then
    mkdir -p "$place"
    environment "$place/tools"
    install "$place/tools" 'maturin>=1.9,<2' || cannot "maturin cannot be installed"
fi

# Into the directory $1, with the options that follow.
build() {
    local into=$1
    shift
    mkdir -p "$into"
    rm -f "$into"/syncline-*.whl
    "$place/tools/bin/maturin" build --manifest-path $crate/Cargo.toml --locked --out "$into" "$@"
}

# Makes the environment $1 with the packages of the tests. They come one by one where not all can be had: one that this
# interpreter or machine lacks must not keep the others away. What is there from an earlier run stays.
equip() {
    local environment=$1 list=$crate/tests/requirements.txt package
    if [ -x "$environment/bin/python" ] && cmp -s "$list" "$environment/requirements.txt"; then return; fi
    environment "$environment"
    if install "$environment" -r "$list" >/dev/null; then
        cp "$list" "$environment/requirements.txt"
        return
    fi
    grep -v '^#' "$list" | while read -r package; do
        install "$environment" "$package" >/dev/null || echo "python: $package cannot be installed here"
    done
}

# Into the environment $1, the wheel in $2.
install_wheel() {
    local wheel
    wheel=$(ls "$2"/syncline-*.whl) && install "$1" --force-reinstall --no-deps "$wheel"
}

# An interpreter loads SQLite's extensions or does not. Where the environment's does not and the distribution's does,
# the tests of SQLite run there as well: the wheel serves both.
other_driver() {
    local other=/usr/bin/python3 packages
    local can='import sqlite3, sys; sys.exit(not hasattr(sqlite3.Connection, "enable_load_extension"))'
    "$place/venv/bin/python" -c "$can" && return
    "$other" -c "$can" 2>/dev/null || return 0
    packages=$("$place/venv/bin/python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))')
    (cd "$place" && PYTHONPATH=$packages "$other" -m pytest -q -rs -p no:cacheprovider -c "$OLDPWD/$crate/pyproject.toml" \
        --rootdir "$OLDPWD/$crate" "$OLDPWD/$crate/tests/test_sqlite.py" "$OLDPWD/$crate/tests/test_snapshots.py")
}

run_tests() {
    local bin=$place/venv/bin log=$place/tests.log status
    "$bin/python" -c 'import pytest' 2>/dev/null || cannot "pytest cannot be installed"
    "$bin/python" -c 'import syncline' || return 1
    # From elsewhere, so that the package is the installed one.
    (cd "$place" && "$bin/python" -m pytest -q -rs -p no:cacheprovider -c "$OLDPWD/$crate/pyproject.toml" \
        --rootdir "$OLDPWD/$crate" "$OLDPWD/$crate/tests" "$@") 2>&1 | tee "$log"
    status=${PIPESTATUS[0]}
    sed -n 's|^SKIPPED \[[0-9]*\] \(.*/\)*\([^:]*\):[^ ]* |skipped: python \2: |p' "$log"
    other_driver || status=1
    if ! "$bin/python" -c 'import mypy' 2>/dev/null; then
        echo "skipped: python mypy: mypy cannot be installed"
        return "$status"
    fi
    (cd $crate && MYPYPATH=python:tests "$bin/python" -m mypy --strict --cache-dir "$place/mypy" python/syncline tests examples) ||
        status=1
    (cd "$place" &&
        "$bin/python" -m mypy.stubtest --mypy-config-file "$OLDPWD/$crate/pyproject.toml" syncline._native) || status=1
    return "$status"
}

case $what in
    wheel)
        build dist --release "$@" && ls -l dist/syncline-*.whl
        ;;
    wheel-arm64)
        kind=aarch64-unknown-linux-gnu
        command -v aarch64-linux-gnu-gcc >/dev/null || cannot "there is no linker for arm64 (gcc-aarch64-linux-gnu)"
        if command -v rustup >/dev/null && ! rustup target list --installed | grep -qx $kind; then
            rustup --quiet target add $kind || cannot "Rust's library for arm64 cannot be installed"
        fi
        export CARGO_TARGET_AARCH64_UNKNOWN_LINUX_GNU_LINKER=aarch64-linux-gnu-gcc
        build dist/arm64 --release --target $kind "$@" && ls -l dist/arm64/syncline-*.whl
        ;;
    environment)
        equip "$place/venv"
        ;;
    test | installed)
        if [ "$what" = test ]; then
            build "$place/wheels" && equip "$place/venv" && install_wheel "$place/venv" "$place/wheels" && run_tests "$@"
        else
            run_tests "$@"
        fi
        status=$?
        [ $status = 0 ] && echo "python: passed" || echo "python: failed"
        exit $status
        ;;
    bench)
        build "$place/wheels" --release && equip "$place/venv" && install_wheel "$place/venv" "$place/wheels" &&
            ${CARGO:-cargo} build --release --locked --example baseline -p syncline &&
            make --no-print-directory build &&
            cc -O2 -D_POSIX_C_SOURCE=200809L -I include -o "$place/baseline-c" crates/capi/examples/baseline.c dist/bin/libsyncline.so.1 \
                "-Wl,-rpath,$PWD/dist/bin" &&
            "$place/venv/bin/python" $crate/bench/compare.py --rust "$target/release/examples/baseline" \
                --c "$place/baseline-c" "$@"
        ;;
    *)
        echo "python.sh: no such thing to do: $what" >&2
        exit 2
        ;;
esac
