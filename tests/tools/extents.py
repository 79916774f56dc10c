"""A file of many extents.

usage: extents.py write|verify|cut FILE EXTENTS
"""

import ctypes
import errno
import os
import random
import sys
import time

BLOCK = 4096
STRIDE = 2 * BLOCK
FULL = os.environ.get("SCALE") == "full"
libc = ctypes.CDLL(None, use_errno=True)
libc.fallocate.argtypes = [ctypes.c_int, ctypes.c_int, ctypes.c_long, ctypes.c_long]
KEEP_SIZE, PUNCH_HOLE = 1, 2


def block(number):
    return number.to_bytes(8, "little") * (BLOCK // 8)


def write(path, extents):
    order = list(range(extents))
    random.Random(5).shuffle(order)
    file = os.open(path, os.O_CREAT | os.O_RDWR, 0o600)
    begun = time.monotonic()
    for number in order:
        assert os.pwrite(file, block(number), number * STRIDE) == BLOCK
    os.fsync(file)
    print(f"written in {time.monotonic() - begun:.1f} s")
    os.close(file)
    verify(path, extents)


def verify(path, extents):
    file = os.open(path, os.O_RDONLY)
    assert os.fstat(file).st_size == (extents - 1) * STRIDE + BLOCK
    assert abs(os.fstat(file).st_blocks * 512 - extents * BLOCK) < 8 << 20, "holes take space"
    begun = time.monotonic()
    hole = bytes(BLOCK)
    for first in range(0, extents, 64):
        count = min(64, extents - first)
        data = os.pread(file, count * STRIDE, first * STRIDE)
        for index in range(count):
            assert data[index * STRIDE :][:BLOCK] == block(first + index), f"extent {first + index}"
            assert data[index * STRIDE + BLOCK :][:BLOCK] in (hole, b""), f"hole after {first + index}"
    print(f"read in {time.monotonic() - begun:.1f} s")
    seeks = range(extents) if FULL else random.Random(6).sample(range(extents - 1), 2000)
    for number in seeks:
        at = number * STRIDE
        assert os.lseek(file, at, os.SEEK_HOLE) == at + BLOCK, f"hole after {number}"
        if number + 1 < extents:
            assert os.lseek(file, at + BLOCK, os.SEEK_DATA) == at + STRIDE, f"data after {number}"
    os.close(file)


def cut(path, extents):
    file = os.open(path, os.O_RDWR)
    half = extents // 2
    os.ftruncate(file, half * STRIDE)
    assert os.fstat(file).st_blocks * 512 < half * BLOCK + (8 << 20)
    assert os.pread(file, BLOCK, (half - 1) * STRIDE) == block(half - 1)
    if libc.fallocate(file, KEEP_SIZE | PUNCH_HOLE, STRIDE, (half - 2) * STRIDE) != 0:
        assert ctypes.get_errno() == errno.EOPNOTSUPP, os.strerror(ctypes.get_errno())
    else:
        assert os.pread(file, STRIDE, 0)[:BLOCK] == block(0)
        assert os.pread(file, BLOCK, 10 * STRIDE) == bytes(BLOCK)
        assert os.pread(file, BLOCK, (half - 1) * STRIDE) == block(half - 1)
        assert os.lseek(file, BLOCK, os.SEEK_DATA) == (half - 1) * STRIDE
    os.fsync(file)
    os.close(file)


action, path, extents = sys.argv[1:]
{"write": write, "verify": verify, "cut": cut}[action](path, int(extents))
