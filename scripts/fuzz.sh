#!/bin/bash
# Runs the fuzzers of fuzz/, one after another, with the stable toolchain.
#
# usage: scripts/fuzz.sh MINUTES [TARGET...]
#
# MINUTES are shared by the targets: a sixth of them each is of `image`, `semantics`, `trees` and `forest`, the rest is
# divided among the others. What is found interesting is kept in fuzz/corpus (not under version control; fuzz/seeds is).
# An input that fails is left in fuzz/artifacts, and the script goes on with the next target and fails at the end.
#
# The compiler's flags are those of cargo-fuzz without a sanitizer, all of them stable. `cargo +nightly fuzz run TARGET`
# works as well where cargo-fuzz is installed.
set -uo pipefail
cd "$(dirname "$0")/.." || exit

minutes=${1:?usage: scripts/fuzz.sh MINUTES [TARGET...]}
shift
targets=("$@")
[ ${#targets[@]} -gt 0 ] || targets=(superblock node bitmap item record journal image semantics trees forest)

if ! command -v c++ >/dev/null 2>&1; then
    echo "fuzz: no C++ compiler to build libFuzzer with; install g++ and try again" >&2
    exit 1
fi
host=$(rustc -vV | sed -n 's/^host: //p')
flags="-Cpasses=sancov-module -Cllvm-args=-sanitizer-coverage-level=4 -Cllvm-args=-sanitizer-coverage-inline-8bit-counters
    -Cllvm-args=-sanitizer-coverage-pc-table -Cllvm-args=-sanitizer-coverage-trace-compares --cfg fuzzing"
build=$(realpath -m "${CARGO_TARGET_DIR:-fuzz/target}")
# With --target, build scripts are built without these flags.
RUSTFLAGS=$flags ${CARGO:-cargo} build --release --manifest-path fuzz/Cargo.toml --target "$host" \
    --target-dir "$build" --bins || exit 1

status=0
for target in "${targets[@]}"; do
    seconds=$((minutes * 60))
    if [ ${#targets[@]} -gt 1 ]; then
        case $target in
            image | semantics | trees | forest) seconds=$((seconds / 6)) ;;
            *) seconds=$((seconds / 3 / ${#targets[@]})) ;;
        esac
    fi
    mkdir -p "fuzz/corpus/$target" "fuzz/artifacts/$target" "fuzz/seeds/$target"
    echo "fuzz: $target, $seconds s"
    "$build/$host/release/$target" "fuzz/corpus/$target" "fuzz/seeds/$target" -max_total_time="$seconds" -timeout=30 \
        -rss_limit_mb=2048 -max_len=20000 -len_control=20 -artifact_prefix="fuzz/artifacts/$target/" \
        -print_final_stats=1 -verbosity="${FUZZ_VERBOSITY:-0}" 2>&1 | tee "$build/$target.log" |
        grep -E 'panicked|assertion|SUMMARY|ERROR|Test unit written|stat::number_of_executed|^  *(left|right):'
    [ "${PIPESTATUS[0]}" = 0 ] || status=1
done
[ $status = 0 ] && echo "fuzz: nothing found" || echo "fuzz: inputs that fail are in fuzz/artifacts" >&2
exit $status
