#!/bin/bash
# Runs the workspace's tests and tells how many could not run here.
#
# usage: scripts/test.sh [cargo test options]
#
# A test that lacks /dev/fuse, root, a loop device or a program writes one line "skipped: TEST: why" to the real standard
# error (which the harness does not capture) and returns. This script counts those lines.
set -uo pipefail
cd "$(dirname "$0")/.."

log=$(mktemp)
trap 'rm -f "$log"' EXIT

# Documentation examples run as well: plain `cargo test` builds and runs all of them.
${CARGO:-cargo} test --workspace --locked --no-fail-fast "$@" 2>&1 | tee "$log"
status=${PIPESTATUS[0]}

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
