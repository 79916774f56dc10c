#!/usr/bin/env bash
# A volume filled to 95 % and then to the brim, again and again: the lack of space is told by the call that needs it,
# never by fsync or close; nothing written before is lost; deleting gives the space back.
set -euo pipefail
. "$(dirname "$0")/../lib.sh"
need python3=python3
make_volume "$(quick_or_full 256 2048)"
rounds=$(quick_or_full 2 10)

fill() {
    python3 "$TOOLS/fill.py" "$MNT" "$1" "$rounds" "$WORK/model" >&3
}

after_remount() {
    remount_volume
    python3 "$TOOLS/fill.py" "$MNT" verify 0 "$WORK/model"
}

emptied() {
    python3 "$TOOLS/fill.py" "$MNT" empty 0 "$WORK/model" >&3
}

run_case "95 % full: delete, refill, overwrite" fill most
run_case "nothing lost after a remount" after_remount
run_case "to the brim: ENOSPC from the write" fill brim
run_case "nothing lost after another remount" after_remount
run_case "deleting frees all" emptied
finish
