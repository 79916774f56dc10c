#!/usr/bin/env bash
# What users do to each other's files, line by line as on ext4: set-id bits by stat and by exec, owners, modes, lists,
# flags, capabilities, links, sticky directories. Over each transport, and with each way to cache.
set -euo pipefail
. "$(dirname "$0")/../lib.sh"
need python3=python3 mkfs.ext4=e2fsprogs losetup=mount id=coreutils

PARAMETER=/sys/module/fuse/parameters/enable_uring
ARGUMENTS=()
[ "$SCALE" = full ] || ARGUMENTS=(--quick)
make_volume "$(quick_or_full 128 768)"

# users DIRECTORY FILE: the lines of a filesystem; what is stale is in them, and an error.
users() {
    python3 "$TOOLS/users.py" "${ARGUMENTS[@]}" "$1" >"$2"
}

on_ext4() {
    local image=$WORK/ext4.img there=$WORK/ext4 status=0
    truncate -s "$(quick_or_full 128 768)M" "$image"
    mkfs.ext4 -q -F "$image"
    mkdir "$there"
    mount -o loop "$image" "$there"
    users "$there" "$WORK/wanted" || status=$?
    umount "$there"
    rm "$image"
    return "$status"
}

# as_on_ext4 OPTIONS [FILTER]: the same lines on our volume, mounted like that.
as_on_ext4() {
    local status=0 filter=${2:-}
    unmount_volume
    if [[ $1 = *transport=uring* ]]; then
        [ -w "$PARAMETER" ] || { echo "the kernel has no $PARAMETER"; mount_volume; exit "$SKIP"; }
        # For nothing but the moment of the mount; others who turn it hold the same lock.
        exec 9<"$PARAMETER"
        flock 9
        local before
        before=$(cat "$PARAMETER")
        echo Y >"$PARAMETER"
        mount_volume "$1" || status=$?
        echo "$before" >"$PARAMETER"
        exec 9<&-
        [ "$status" = 0 ] || return "$status"
    else
        mount_volume "$1"
    fi
    users "$MNT" "$WORK/got" || status=$?
    wc -l <"$WORK/got" >&3
    diff <(sed "$filter" "$WORK/wanted") <(sed "$filter" "$WORK/got") || fail "not as on ext4 (<)"
    return "$status"
}

run_case "ext4 itself" on_ext4
if [ "$BACKEND" = syncline ]; then
    run_case "over /dev/fuse" as_on_ext4 transport=dev
    run_case "over io_uring" as_on_ext4 transport=uring
    run_case "past the page cache" as_on_ext4 direct_writes
    # The kernel keeps the times of files itself, in units of its ticks, and does not learn of changes by an ioctl.
    run_case "written back" as_on_ext4 writeback_cache 's/ changed=[a-z-]*//g'
fi
finish
