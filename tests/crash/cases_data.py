"""Crash scenarios of data: writes, sizes, holes, allocation, mappings; and of recovery itself."""

import errno
import mmap
import os
import time

from case import content, table
from syscalls import COLLAPSE_RANGE, INSERT_RANGE, KEEP_SIZE, PUNCH_HOLE, ZERO_RANGE, fallocate

CASES, scenario = table()
PAGE = 4096


@scenario("C1: a file of 20 MiB is there whole after fsync")
def large_file(v):
    yield
    v.write("f", content(1, 20 << 20), sync=True)
    yield
    assert v.read("f") == content(1, 20 << 20)


@scenario("C1: fsync of a small file while another has much dirty data")
def small_beside_large(v):
    yield
    v.write("large", content(1, 16 << 20))
    v.write("small", content(2), sync=True)
    yield
    assert v.read("small") == content(2)
    large = v.read("large")
    assert all(large[at : at + PAGE] in (content(1, 16 << 20)[at : at + PAGE], bytes(len(large[at : at + PAGE])))
               for at in range(0, len(large), PAGE)), "foreign bytes in an un-synced file"


@scenario("C1: fdatasync covers the new size")
def append_and_fdatasync(v):
    v.write("f", content(1, 1000))
    yield
    v.write("f", content(2, 7000), at=1000)
    v.fsync("f", data_only=True)
    yield
    assert v.read("f") == content(1, 1000) + content(2, 7000)


@scenario("C1: many small appends, each fsynced, across page boundaries")
def many_appends(v):
    yield
    handle = v.open("f", os.O_CREAT | os.O_WRONLY | os.O_APPEND)
    for number in range(200):
        os.write(handle, content(number, 100 + number))
        os.fsync(handle)
    os.write(handle, b"not synced")
    yield
    want = b"".join(content(number, 100 + number) for number in range(200))
    got = v.read("f")
    assert got in (want, want + b"not synced"), f"{len(got)} bytes, not {len(want)}"


@scenario("C1: one page overwritten 3,000 times, each fsynced: the last one (the journal wraps)")
def overwritten_often(v):
    v.write("f", content(0, 3 * PAGE))
    yield
    handle = v.open("f")
    for number in range(3000):
        os.pwrite(handle, content(number, PAGE), PAGE)
        os.fsync(handle)
    yield
    assert v.read("f") == content(0, 3 * PAGE)[:PAGE] + content(2999, PAGE) + content(0, 3 * PAGE)[2 * PAGE :]


@scenario("C1: a write on an O_DSYNC handle is durable when it returns")
def synchronous_writes(v):
    yield
    handle = v.open("f", os.O_CREAT | os.O_WRONLY | os.O_DSYNC)
    os.write(handle, content(1))
    other = v.open("g", os.O_CREAT | os.O_WRONLY | os.O_SYNC)
    os.write(other, content(2))
    yield
    assert v.read("f") == content(1) and v.read("g") == content(2)


@scenario("C1: mount option sync: every write is durable when it returns", options="sync,commit=3600", only_syncline=True)
def sync_option(v):
    yield
    v.write("f", content(1, 50_000))
    os.truncate(v.path("f"), 40_000)
    yield
    assert v.read("f") == content(1, 50_000)[:40_000]


@scenario("C1: direct I/O needs its fsync like any other, and has it")
def direct_io(v):
    yield
    buffer = mmap.mmap(-1, 16 * PAGE)
    buffer[:] = content(1, 16 * PAGE)
    handle = v.open("f", os.O_CREAT | os.O_RDWR | os.O_DIRECT)
    os.pwrite(handle, buffer, 0)
    os.fsync(handle)
    buffer.close()
    yield
    assert v.read("f") == content(1, 16 * PAGE)


@scenario("C1: truncated down and fsynced")
def truncate_down(v):
    v.write("f", content(1, 100_000))
    yield
    os.truncate(v.path("f"), 5001)
    v.fsync("f")
    yield
    assert v.read("f") == content(1, 100_000)[:5001]


@scenario("C1: truncated up and fsynced: zeros")
def truncate_up(v):
    v.write("f", content(1, 5001))
    yield
    os.truncate(v.path("f"), 100_000)
    v.fsync("f")
    yield
    assert v.read("f") == content(1, 5001) + bytes(100_000 - 5001)


@scenario("C1: truncated down, then written further out: zeros between, nothing stale")
def truncate_and_extend(v):
    v.write("f", content(1, 100_000))
    yield
    os.truncate(v.path("f"), 3000)
    v.write("f", content(2, 100), at=50_000)
    v.fsync("f")
    yield
    assert v.read("f") == content(1, 100_000)[:3000] + bytes(47_000) + content(2, 100)


@scenario("C2: a truncate without a sync: the old content or the shorter one")
def truncate_without_a_sync(v):
    v.write("f", content(1, 100_000))
    yield
    os.truncate(v.path("f"), 5001)
    yield
    assert v.read("f") in (content(1, 100_000), content(1, 100_000)[:5001])


@scenario("C1: truncated down and up twice, with fsyncs between")
def truncate_twice(v):
    v.write("f", content(1, 20_000))
    yield
    for size in (100, 20_000, 4097, 9000):
        os.truncate(v.path("f"), size)
        v.fsync("f")
    yield
    assert v.read("f") == content(1, 20_000)[:100] + bytes(9000 - 100)


@scenario("C3: truncated to zero, rewritten and closed: the new content is there after the commit interval",
          options="commit=0.2", only_syncline=True)
def truncate_rewrite_close(v):
    v.write("f", content(1))
    yield
    v.write("f", content(2, 40_000))
    time.sleep(1.5)
    yield
    assert v.read("f") == content(2, 40_000)


@scenario("C9: what is older than the commit interval is durable without a sync", options="commit=0.2", only_syncline=True)
def commit_interval(v):
    yield
    os.mkdir(v.path("d"))
    for number in range(50):
        v.write(f"d/{number}", content(number, 300 * number))
    time.sleep(2)
    yield
    assert len(v.list("d")) == 50
    for number in range(50):
        assert v.read(f"d/{number}") == content(number, 300 * number)


@scenario("C1: holes read as zeros and stay holes")
def holes(v):
    yield
    v.write("f", content(1, 100), at=0)
    v.write("f", content(2, 100), at=1_000_000)
    v.write("f", content(3, 100), at=5_000_000)
    v.fsync("f")
    yield
    data = v.read("f")
    assert len(data) == 5_000_100 and v.stat("f").st_blocks * 512 <= 64 * 1024
    assert data[:100] == content(1, 100) and data[1_000_000:1_000_100] == content(2, 100) and data[5_000_000:] == content(3, 100)
    assert not any(data[100:1_000_000]) and not any(data[1_000_100:5_000_000])
    handle = v.open("f")
    assert os.lseek(handle, 100_000, os.SEEK_DATA) == 1_000_000 // PAGE * PAGE


@scenario("C1: a hole punched and fsynced")
def punch_hole(v):
    v.write("f", content(1, 100_000))
    yield
    handle = v.open("f")
    fallocate(handle, KEEP_SIZE | PUNCH_HOLE, 10_000, 50_000)
    os.fsync(handle)
    yield
    whole = content(1, 100_000)
    assert v.read("f") == whole[:10_000] + bytes(50_000) + whole[60_000:]


@scenario("C1: a hole punched into just written, un-synced data")
def punch_into_dirty_data(v):
    v.write("f", content(1, 40_000))
    yield
    handle = v.open("f")
    os.pwrite(handle, content(2, 40_000), 0)
    fallocate(handle, KEEP_SIZE | PUNCH_HOLE, 8192, 8192)
    os.pwrite(handle, content(3, 100), 10_000)
    os.fsync(handle)
    yield
    want = bytearray(content(2, 40_000))
    want[8192:16384] = bytes(8192)
    want[10_000:10_100] = content(3, 100)
    assert v.read("f") == bytes(want)


@scenario("C1: fallocate gives zeros, a size, and space that later writes can use")
def fallocate_sizes(v):
    yield
    handle = v.open("f", os.O_CREAT | os.O_RDWR)
    fallocate(handle, 0, 0, 1 << 20)
    os.pwrite(handle, content(1, 100), 500_000)
    os.fsync(handle)
    kept = v.open("g", os.O_CREAT | os.O_RDWR)
    os.pwrite(kept, content(2, 100), 0)
    fallocate(kept, KEEP_SIZE, 0, 1 << 20)
    os.fsync(kept)
    yield
    data = v.read("f")
    assert len(data) == 1 << 20 and data[500_000:500_100] == content(1, 100)
    assert not any(data[:500_000]) and not any(data[500_100:])
    assert v.read("g") == content(2, 100)


@scenario("C1: a range zeroed, one collapsed, one inserted")
def shifted_ranges(v):
    for name in ("zeroed", "collapsed", "inserted"):
        v.write(name, content(name, 20 * PAGE))
    yield
    zeroed, collapsed, inserted = (v.open(name) for name in ("zeroed", "collapsed", "inserted"))
    try:
        fallocate(zeroed, ZERO_RANGE, 5000, 3 * PAGE)
        fallocate(collapsed, COLLAPSE_RANGE, 4 * PAGE, 8 * PAGE)
        fallocate(inserted, INSERT_RANGE, 4 * PAGE, 8 * PAGE)
    except OSError as error:
        # The FUSE protocol of some kernels lacks the last two.
        assert error.errno == errno.EOPNOTSUPP, error
        v.shifted = False
    else:
        v.shifted = True
    for handle in (zeroed, collapsed, inserted):
        os.fsync(handle)
    yield
    whole = content("zeroed", 20 * PAGE)
    assert v.read("zeroed") == whole[:5000] + bytes(3 * PAGE) + whole[5000 + 3 * PAGE :]
    if v.shifted:
        whole = content("collapsed", 20 * PAGE)
        assert v.read("collapsed") == whole[: 4 * PAGE] + whole[12 * PAGE :]
        whole = content("inserted", 20 * PAGE)
        assert v.read("inserted") == whole[: 4 * PAGE] + bytes(8 * PAGE) + whole[4 * PAGE :]


@scenario("C1: stores into a shared mapping, then msync")
def mapped_memory(v):
    v.write("f", content(1, 10 * PAGE))
    yield
    handle = v.open("f")
    mapping = mmap.mmap(handle, 10 * PAGE)
    mapping[5000:15_000] = content(2, 10_000)
    mapping.flush()
    # A store after the msync may be lost, but nothing else.
    mapping[20_000:20_010] = b"0123456789"
    mapping.close()
    yield
    want = bytearray(content(1, 10 * PAGE))
    want[5000:15_000] = content(2, 10_000)
    got = bytearray(v.read("f"))
    assert got[20_000:20_010] in (want[20_000:20_010], b"0123456789")
    got[20_000:20_010] = want[20_000:20_010]
    assert got == want


@scenario("C1: copy_file_range, then fsync of the copy")
def copied_range(v):
    v.write("a", content(1, 300_000))
    yield
    a, b = v.open("a"), v.open("b", os.O_CREAT | os.O_RDWR)
    done = 0
    while done < 200_000:
        done += os.copy_file_range(a, b, 200_000 - done, 1000 + done, done)
    os.fsync(b)
    os.pwrite(a, b"changed", 1000)
    yield
    assert v.read("b") == content(1, 300_000)[1000:201_000]


@scenario("C1: files written by several handles, each synced by another one")
def synced_by_another_handle(v):
    yield
    writer = v.open("f", os.O_CREAT | os.O_RDWR)
    os.pwrite(writer, content(1, 20_000), 0)
    v.fsync("f")
    yield
    assert v.read("f") == content(1, 20_000)


@scenario("C7, C1: an un-synced overwrite of synced data: each page old or new")
def overwrite_without_a_sync(v):
    v.write("f", content(1, 64 * PAGE))
    v.write("other", b"")
    yield
    v.write("f", content(2, 64 * PAGE), at=0)
    v.write("other", b"x", sync=True)
    yield
    data = v.read("f")
    assert len(data) == 64 * PAGE
    for at in range(0, 64 * PAGE, PAGE):
        assert data[at : at + PAGE] in (content(1, 64 * PAGE)[at : at + PAGE], content(2, 64 * PAGE)[at : at + PAGE]), at


@scenario("C1: two power cuts in a row, the second right after the mount")
def cut_after_recovery(v):
    for number in range(50):
        v.write(f"f{number}", content(number))
    yield
    for number in range(0, 50, 2):
        v.write(f"f{number}", content(("new", number)), sync=True)
    os.unlink(v.path("f1"))
    v.fsync(".")
    for _ in range(3):
        v.cut()
        v.mount()
    yield
    assert len(v.list()) == 49
    for number in range(50):
        if number != 1:
            assert v.read(f"f{number}") == content(number if number % 2 else ("new", number))


@scenario("C1: cut, more work on the recovered volume, cut again")
def work_between_cuts(v):
    v.write("f", content(0, 30_000))
    yield
    for number in range(1, 6):
        v.write("f", content(number, 30_000), at=0, sync=True)
        v.write(f"g{number}", content(number), sync=True)
        v.write("unsynced", content(number, 100_000))
        v.cut()
        v.mount()
        assert v.read("f") == content(number, 30_000)
    yield
    assert v.read("f") == content(5, 30_000)
    for number in range(1, 6):
        assert v.read(f"g{number}") == content(number)


@scenario("C1: a cut while the journal is being reused: 400 files of 20 KiB, all fsynced")
def many_synced_files(v):
    yield
    for number in range(400):
        v.write(f"f{number}", content(number, 20_000), sync=True)
    yield
    for number in range(400):
        assert v.read(f"f{number}") == content(number, 20_000), f"f{number}"


@scenario("C2: files fsynced, then all removed, without a sync: each is whole or gone, in order")
def removal_without_a_sync(v):
    for number in range(100):
        v.write(f"f{number}", content(number, 10_000))
    v.write("other", b"")
    yield
    for number in range(100):
        os.unlink(v.path(f"f{number}"))
        if number == 50:
            v.fsync("other")
        # New data must not land where removed files may come back.
        v.write(f"g{number}", content(("g", number), 10_000))
        v.write("other", content(number), at=0)
    yield
    left = [number for number in range(100) if v.exists(f"f{number}")]
    assert left == list(range(100 - len(left), 100)) and len(left) < 50
    for number in left:
        assert v.read(f"f{number}") == content(number, 10_000), f"f{number}"
