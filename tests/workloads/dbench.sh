#!/usr/bin/env bash
# dbench with 16 clients: a file server's load. dbench compares every result with its load file's and says so; it must
# leave an empty tree.
set -euo pipefail
. "$(dirname "$0")/../lib.sh"
need dbench=dbench
make_volume 1024
seconds=$(quick_or_full 8 300)

load() {
    local out=$WORK/dbench.out load_file=/usr/share/dbench/client.txt
    [ -f "$load_file" ] || { echo "no load file $load_file; install dbench"; exit "$SKIP"; }
    mkdir "$MNT/dbench"
    dbench --directory="$MNT/dbench" --loadfile="$load_file" --timelimit="$seconds" "$1" >"$out" 2>&1 ||
        { tail -n 20 "$out"; fail "dbench failed"; }
    # Where System V semaphores are missing its clients only start less evenly.
    ! grep -iE 'error|fail|unable|expected' "$out" | grep -v 'barrier semaphore' || fail "dbench found a wrong result"
    grep -E '^Throughput' "$out" >&3
    grep -E '^ *(Flush|Rename) ' "$out" | awk '{ print $1, "average", $3, "ms, max", $4 }' >&3
    # What dbench leaves are its clients' directories.
    rm -rf "$MNT/dbench/clients"
    expect "" "$(ls -A "$MNT/dbench")" "left over"
    rmdir "$MNT/dbench"
}

run_case "16 clients" load 16
finish
