#!/usr/bin/env bash
# The daemon's memory: trees that are unpacked and removed again and again, and a build with many short programs, leave
# it within its bound and no larger than it was.
set -euo pipefail
. "$(dirname "$0")/../lib.sh"
need tar=tar git=git python3=python3
[ "$BACKEND" = syncline ] || skip_all "other filesystems have no daemon"
MEMORY_MIB=128
MOUNT_OPTIONS=${MOUNT_OPTIONS:+$MOUNT_OPTIONS,}memory=${MEMORY_MIB}M
make_volume 1024
rounds=$(quick_or_full 6 60)
files=$(quick_or_full 1000 4000)
# What the allocator may keep between pieces, and slabs of which a part is in use.
LEFT_KIB=$((12 * 1024))

# What no file backs, in KiB.
resident() {
    sed -n 's/^RssAnon:[[:space:]]*\([0-9]*\) kB$/\1/p' "/proc/$(daemon_pid)/status"
}

# Most of what the daemon has while it works and, behind that, when it has been idle long enough to give memory back.
watch_loop() {
    local first='' most=0 last now
    for ((round = 1; round <= rounds; round++)); do
        "$@"
        sync "$MNT"
        now=$(resident)
        [ "$now" -gt "$most" ] && most=$now
        # The first round fills pools that are kept.
        [ "$round" = 2 ] && first=$now
    done
    last=$(resident)
    echo "$rounds rounds: $((first / 1024)) MiB, at most $((most / 1024)), at the end $((last / 1024))" >&3
    [ "$most" -le $((MEMORY_MIB * 1024)) ] || fail "$most KiB were resident, the bound is $MEMORY_MIB MiB"
    [ "$last" -le $((first + LEFT_KIB)) ] || fail "$first KiB were resident behind two rounds, $last at the end"
}

archive() {
    python3 - "$WORK/tree.tar" "$files" <<'PYTHON'
import io, os, sys, tarfile

with tarfile.open(sys.argv[1], "w") as archive:
    for number in range(int(sys.argv[2])):
        content = os.urandom(500 + number * 37 % 24000)
        entry = tarfile.TarInfo(f"tree/{number // 50}/file-{number}")
        entry.size = len(content)
        archive.addfile(entry, io.BytesIO(content))
PYTHON
}

unpack_and_remove() {
    tar -xf "$WORK/tree.tar" -C "$MNT"
    rm -rf "$MNT/tree"
}

# Many small files that are made, read by many programs, renamed over and removed, as a build does it.
build() {
    local number
    rm -rf "$MNT/build"
    git -c init.defaultBranch=main init -q "$MNT/build"
    tar -xf "$WORK/tree.tar" -C "$MNT/build"
    git -C "$MNT/build" add -A
    git -C "$MNT/build" -c user.name=a -c user.email=a@b.c commit -qm "$round"
    for ((number = 0; number < 100; number++)); do
        cp "$MNT/build/tree/0/file-$((number % 50))" "$MNT/build/object.tmp"
        mv "$MNT/build/object.tmp" "$MNT/build/object-$number"
    done
    git -C "$MNT/build" gc -q --prune=now
    git -C "$MNT/build" status --porcelain >/dev/null
}

run_case "make an archive of $files files" archive
run_case "unpack and remove" watch_loop unpack_and_remove
run_case "build" watch_loop build
finish
