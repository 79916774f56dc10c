#!/usr/bin/env bash
# A file of 100,000 extents (a quick run: 30,000): every second block written, in random order; read back, SEEK_HOLE and
# SEEK_DATA, truncated.
set -euo pipefail
. "$(dirname "$0")/../lib.sh"
need python3=python3
make_volume 1024
blocks=$(quick_or_full 30000 100000)

verify_again() {
    remount_volume
    python3 "$TOOLS/extents.py" verify "$MNT/file" "$blocks" >&3
}

write() {
    python3 "$TOOLS/extents.py" write "$MNT/file" "$blocks" >&3
}

remove() {
    python3 "$TOOLS/extents.py" cut "$MNT/file" "$blocks"
    rm "$MNT/file"
}

run_case "write $blocks extents" write
run_case "verify after a remount" verify_again
run_case "truncate, punch, remove" remove
finish
