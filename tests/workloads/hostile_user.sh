#!/usr/bin/env bash
# A user who takes as much as the daemon gives, of everything, beside another one who works; an attack is a case.
set -euo pipefail
. "$(dirname "$0")/../lib.sh"
need python3=python3
[ "$BACKEND" = syncline ] || skip_all "is about Syncline's own calls and its daemon"
make_volume 512
remount_volume allow_other
chmod 0755 "$MNT"

attack() {
    python3 "$TOOLS/hostile_user.py" "$MNT" "$1" >"$WORK/attack.log" || { cat "$WORK/attack.log"; return 1; }
    sed 's/^[^:]*: //' "$WORK/attack.log" >&3
}

for name in many_groups many_atomic_files many_tickets many_names much_space small_groups many_watched_pages many_handles \
    many_attributes large_directory; do
    run_case "${name//_/ }" attack "$name"
done
finish
