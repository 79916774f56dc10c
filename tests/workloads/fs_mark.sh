#!/usr/bin/env bash
# fs_mark: many small files from several threads, in its two ways to sync; count, sizes and content after a remount.
set -euo pipefail
. "$(dirname "$0")/../lib.sh"
need fs_mark=fsmark
make_volume 1024
files=$(quick_or_full 1000 10000)

# -S 1: fsync each file; -S 5: write all, then fsync all in a second pass.
mark() {
    local directory=$MNT/fs_mark-$1 rate
    mkdir "$directory"
    # It takes no path of 40 bytes or more.
    (cd "$MNT" && fs_mark -k -S "$1" -s 4096 -n "$files" -t 4 -d "fs_mark-$1" -l "$WORK/fs_mark.log" >"$WORK/fs_mark.out")
    rate=$(awk '$1 ~ /^[0-9]+$/ { rate = $4 } END { print rate }' "$WORK/fs_mark.out")
    echo "$rate files/s" >&3
    expect $((4 * files)) "$(find "$directory" -type f -size 4096c | wc -l)" "files of 4096 bytes"
    manifest "$directory" >"$WORK/before"
    remount_volume
    manifest "$directory" >"$WORK/after"
    diff "$WORK/before" "$WORK/after"
    rm -r "$directory"
}

run_case "sync each file" mark 1
run_case "write all, then sync all" mark 5
finish
