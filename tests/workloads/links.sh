#!/usr/bin/env bash
# 65,000 hard links to one file, in one directory and over many.
set -euo pipefail
. "$(dirname "$0")/../lib.sh"
need python3=python3
make_volume 256

verify_remove() {
    remount_volume
    python3 "$TOOLS/links.py" verify "$MNT"
    python3 "$TOOLS/links.py" remove "$MNT"
}
run_case "65,000 links" python3 "$TOOLS/links.py" make "$MNT"
run_case "after a remount, and removed" verify_remove
finish
