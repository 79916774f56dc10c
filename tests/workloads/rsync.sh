#!/usr/bin/env bash
# rsync of a source tree, compared by content, by attributes and by rsync itself; then with changes, then with
# deletions.
set -euo pipefail
. "$(dirname "$0")/../lib.sh"
need rsync=rsync
make_volume "$(quick_or_full 512 4096)"
source=$WORK/source

same() {
    # diff takes two pipes for different; the manifest compares them.
    diff -r --no-dereference --exclude=fifo "$source" "$MNT/copy"
    manifest "$source" >"$WORK/want"
    manifest "$MNT/copy" >"$WORK/got"
    diff "$WORK/want" "$WORK/got"
    expect "" "$(rsync -aHAX --checksum --delete --dry-run --itemize-changes "$source/" "$MNT/copy/")" "rsync sees changes"
}

first_copy() {
    cp -a "$(quick_or_full /usr/include/linux /usr/include)" "$source"
    mkdir -p "$source/odd"
    ln "$(find "$source" -name '*.h' -type f | sort | head -n 1)" "$source/odd/hard"
    ln -s ../nowhere "$source/odd/broken"
    mkfifo "$source/odd/fifo"
    truncate -s 3M "$source/odd/sparse"
    : >"$source/odd/empty"
    chmod 4751 "$source/odd/empty"
    chown 12:34 "$source/odd/broken" -h
    touch -d '1969-07-20 20:17:40.123456789 UTC' "$source/odd/old"
    touch -d '2200-01-01 00:00:00.5 UTC' "$source/odd/new"
    # rsync compares the times of these by whole seconds.
    touch -h -d "2001-02-03 04:05:06 UTC" "$source/odd/broken" "$source/odd/fifo"
    rsync -aHAX --sparse "$source/" "$MNT/copy/"
    same
}

changed() {
    find "$source" -name '*a*.h' -exec sed -i '1i /* changed */' {} +
    find "$source" -name '*b*.h' -delete
    rsync -aHAX --delete --no-whole-file "$source/" "$MNT/copy/"
    same
}

after_remount() {
    remount_volume
    same
    rm -r "$MNT/copy"
}

run_case "first copy" first_copy
run_case "changes and deletions" changed
run_case "after a remount" after_remount
finish
