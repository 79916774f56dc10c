#!/bin/bash
# Builds the Python wheel, and tests and measures it as a user has it: installed into a fresh environment.
#
# usage: scripts/python.sh wheel            dist/syncline-*.whl, optimised
#        scripts/python.sh test             tests, doctests, the programs of docs/python.md, mypy
#        scripts/python.sh bench [options]  crates/python/bench/compare.py, optimised
#
# PYTHON names the interpreter (python3). Everything that is installed lies below the target directory, and comes from
# where pip is told to look. What cannot be had makes tests skip, with a line "skipped: TEST: why" each.
set -uo pipefail
cd "$(dirname "$0")/.." || exit

what=${1:?usage: scripts/python.sh wheel|test|bench}
shift
python=${PYTHON:-python3}
target=$(realpath -m "${CARGO_TARGET_DIR:-target}")
place=$target/python
crate=crates/python

# Without a tool of the build there is nothing to test. On a machine without a network the project is not to blame.
cannot() {
    echo "skipped: python: $1"
    [ "$what" = test ] && exit 0
    exit 1
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

# Into the environment $1, the wheel in $2. The packages of the tests come one by one: one that this interpreter or
# machine cannot have must not keep the others away.
equip() {
    local environment=$1 wheel
    environment "$environment"
    wheel=$(ls "$2"/syncline-*.whl) || return 1
    install "$environment" "$wheel" || return 1
    local packages
    mapfile -t packages < <(grep -v '^#' $crate/tests/requirements.txt)
    if ! install "$environment" "${packages[@]}" >/dev/null; then
        local package
        for package in "${packages[@]}"; do
            install "$environment" "$package" >/dev/null || echo "python: $package cannot be installed here"
        done
    fi
}

run_tests() {
    local bin=$place/venv/bin log=$place/tests.log status
    "$bin/python" -c 'import pytest' 2>/dev/null || cannot "pytest cannot be installed"
    # From elsewhere, so that the package is the installed one.
    (cd "$place" && "$bin/python" -m pytest -q -rs -p no:cacheprovider -c "$OLDPWD/$crate/pyproject.toml" \
        --rootdir "$OLDPWD/$crate" "$OLDPWD/$crate/tests" "$@") 2>&1 | tee "$log"
    status=${PIPESTATUS[0]}
    sed -n 's/^SKIPPED \[[0-9]*\] \([^:]*\):[^ ]* /skipped: python \1: /p' "$log"
    if ! "$bin/python" -c 'import mypy' 2>/dev/null; then
        echo "skipped: python mypy: mypy cannot be installed"
        return "$status"
    fi
    (cd $crate && MYPYPATH=python:tests "$bin/python" -m mypy --strict --cache-dir "$place/mypy" python/syncline tests) ||
        status=1
    (cd "$place" &&
        "$bin/python" -m mypy.stubtest --mypy-config-file "$OLDPWD/$crate/pyproject.toml" syncline._native) || status=1
    return "$status"
}

case $what in
    wheel)
        build dist --release "$@" && ls -l dist/syncline-*.whl
        ;;
    test)
        build "$place/wheels" && equip "$place/venv" "$place/wheels" && run_tests "$@"
        status=$?
        [ $status = 0 ] && echo "python: passed" || echo "python: failed"
        exit $status
        ;;
    bench)
        build "$place/wheels" --release && equip "$place/venv" "$place/wheels" &&
            ${CARGO:-cargo} build --release --locked --example baseline -p syncline &&
            "$place/venv/bin/python" $crate/bench/compare.py --rust "$target/release/examples/baseline" "$@"
        ;;
    *)
        echo "python.sh: no such thing to do: $what" >&2
        exit 2
        ;;
esac
