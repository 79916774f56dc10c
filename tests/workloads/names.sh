#!/usr/bin/env bash
# Names: 255 bytes long, of any byte, in every operation; longer ones are refused; long paths.
set -euo pipefail
. "$(dirname "$0")/../lib.sh"
need python3=python3
make_volume 64

run_case "names" python3 "$TOOLS/names.py" make "$MNT"
after_remount() {
    remount_volume
    python3 "$TOOLS/names.py" verify "$MNT"
}
run_case "names after a remount" after_remount
finish
