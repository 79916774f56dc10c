"""Data at chosen places of a huge sparse file.

usage: far_file.py write|verify FILE
"""

import hashlib
import os
import sys

GIB = 1 << 30
# Beginning, around 32-bit limits, unaligned, and the last byte.
PLACES = [0, 4096, 2 * GIB - 1, 2 * GIB, 4 * GIB - 100, 4 * GIB, 500 * GIB + 123, 900 * GIB - 70000]
PIECE = 70000


def piece(place):
    return (hashlib.sha256(str(place).encode()).digest() * (PIECE // 32 + 1))[:PIECE]


def write(path):
    file = os.open(path, os.O_CREAT | os.O_RDWR, 0o600)
    for place in PLACES:
        assert os.pwrite(file, piece(place), place) == PIECE
    os.fsync(file)
    os.close(file)
    verify(path)


def verify(path):
    file = os.open(path, os.O_RDONLY)
    assert os.fstat(file).st_size == 900 * GIB
    for number, place in enumerate(PLACES):
        # Up to where a later write covers it.
        end = min([p for p in PLACES[number + 1 :] if place < p < place + PIECE], default=place + PIECE)
        earlier = [p for p in PLACES[number + 1 :] if p <= place < p + PIECE]
        if not earlier:
            assert os.pread(file, end - place, place) == piece(place)[: end - place], f"at {place}"
    for hole in (1 * GIB, 3 * GIB, 499 * GIB, 899 * GIB):
        assert os.pread(file, 65536, hole) == bytes(65536), f"hole at {hole}"
    assert os.fstat(file).st_blocks * 512 < 4 << 20, "holes take space"
    assert os.lseek(file, 600 * GIB, os.SEEK_DATA) // 4096 <= (900 * GIB - 70000) // 4096
    assert os.lseek(file, 600 * GIB, os.SEEK_DATA) > 890 * GIB
    os.close(file)


{"write": write, "verify": verify}[sys.argv[1]](sys.argv[2])
