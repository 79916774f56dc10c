#!/usr/bin/env bash
# SQLite in every journal mode: inserts, updates and deletes with an index, rollbacks, two connections; integrity_check
# and the content's sum at once and after a remount.
set -euo pipefail
. "$(dirname "$0")/../lib.sh"
need python3=python3
make_volume 512
rows=$(quick_or_full 300 3000)

mode() {
    python3 "$TOOLS/sqlite_load.py" run "$MNT/$1.db" "$1" "$rows" >"$WORK/want"
    cat "$WORK/want" >&3
    remount_volume
    python3 "$TOOLS/sqlite_load.py" verify "$MNT/$1.db" "$1" "$rows"
}

for journal in delete truncate persist memory wal off; do
    run_case "journal mode $journal" mode "$journal"
done
finish
