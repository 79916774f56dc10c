#!/usr/bin/env bash
# One directory of 100,000 files (a full run: 1,000,000): listed whole, seekdir, removed while being listed.
set -euo pipefail
. "$(dirname "$0")/../lib.sh"
need python3=python3
make_volume "$(quick_or_full 1024 4096)"
files=$(quick_or_full 100000 1000000)

create() {
    python3 "$TOOLS/big_directory.py" create "$MNT/big" "$files" >&3
}

list() {
    python3 "$TOOLS/big_directory.py" list "$MNT/big" "$files" >&3
    remount_volume
    python3 "$TOOLS/big_directory.py" list "$MNT/big" "$files" >&3
}

seek() {
    python3 "$TOOLS/big_directory.py" seek "$MNT/big" "$files"
}

remove() {
    python3 "$TOOLS/big_directory.py" remove "$MNT/big" "$files" >&3
    remount_volume
    expect "" "$(ls -A --ignore=lost+found "$MNT")" "left over"
}

run_case "create $files files" create
run_case "list, remount, list" list
run_case "seekdir" seek
run_case "remove while listing" remove
finish
