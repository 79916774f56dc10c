#!/usr/bin/env bash
# fio with crc32c headers in every block, in six job shapes; each is verified by fio itself right after the writes, and
# once more after a remount, when every byte comes from the device.
set -euo pipefail
. "$(dirname "$0")/../lib.sh"
need fio=fio
make_volume "$(quick_or_full 1024 8192)"
size=$(quick_or_full 48m 1g)

# Jobs write every block once (no `norandommap`), so that the second pass knows what to expect.
job() {
    local name=$1
    shift
    local common=(--name="$name" --filename="$MNT/$name" --size="$size" --verify=crc32c --verify_fatal=1
        --verify_dump=0 --randseed=4711 --fallocate=none --minimal)
    (cd "$WORK" && fio "${common[@]}" "$@" --do_verify=1 >/dev/null)
    remount_volume
    (cd "$WORK" && fio "${common[@]}" "$@" --verify_only >/dev/null)
    rm "$MNT/$name"
}

overwrite() {
    local common=(--name=overwrite --filename="$MNT/overwrite" --size="$size" --fallocate=none --minimal --verify=crc32c
        --verify_fatal=1 --verify_dump=0 --do_verify=0)
    cd "$WORK"
    fio "${common[@]}" --rw=write --bs=64k --randseed=1 --end_fsync=1 >/dev/null
    fio "${common[@]}" --rw=randwrite --bs=4k --randseed=2 --fsync=64 >/dev/null
    remount_volume
    fio "${common[@]}" --rw=randwrite --bs=4k --randseed=2 --verify_only --do_verify=1 >/dev/null
    rm "$MNT/overwrite"
}

run_case "sequential write, 64 KiB" job seqwrite --rw=write --bs=64k --end_fsync=1
size=$(quick_or_full 24m 1g)
run_case "random write, 4 KiB" job randwrite --rw=randwrite --bs=4k --end_fsync=1
run_case "random read and write, fsync every 16" job randrw --rw=randwrite --bs=4k --fsync=16 --rwmixread=30
run_case "direct, asynchronous, 16 in flight" job direct --rw=randwrite --bs=16k --direct=1 --ioengine=libaio --iodepth=16
run_case "mapped memory" job mmap --rw=randwrite --bs=4k --ioengine=mmap --fsync=256
run_case "overwrite, remount, verify" overwrite
finish
