#!/usr/bin/env python3
"""Says in how large folios the kernel caches files, and what a warm read of them costs.

usage: folios.py FILE...   (root; each file is read whole, ten times, in turn with the others)

For each file: the folios that it is cached in, by size, as /proc/kpageflags tells; and the least processor time of a read in
pieces of 1 MiB that is served by the page cache alone, which says more than elapsed time on a busy machine.
"""
import collections
import mmap
import os
import struct
import sys
import time

PAGE = mmap.PAGESIZE
PIECE = 1 << 20
READS = 10
COMPOUND_HEAD, COMPOUND_TAIL = 1 << 15, 1 << 16
PRESENT, FRAME_MASK = 1 << 63, (1 << 55) - 1


def read_whole(path):
    """Seconds of processor time per GiB."""
    buffer = bytearray(PIECE)
    with open(path, "rb", buffering=0) as file:
        begun = time.process_time()
        total = 0
        while count := file.readinto(buffer):
            total += count
        return (time.process_time() - begun) / total * (1 << 30)


def flags_of_pages(path):
    """The kernel's flags of each cached page, in the order of the file."""
    size = os.path.getsize(path)
    with open(path, "rb") as file, mmap.mmap(file.fileno(), size, prot=mmap.PROT_READ) as view:
        for at in range(0, size, PAGE):
            view[at]
        # The address of the mapping is found where the kernel lists it.
        wanted = f" {os.fstat(file.fileno()).st_ino} "
        with open("/proc/self/maps") as maps:
            start = next(int(line.split("-")[0], 16) for line in maps if wanted in line and path in line)
        with open("/proc/self/pagemap", "rb") as pagemap, open("/proc/kpageflags", "rb", buffering=0) as kernel:
            pagemap.seek(start // PAGE * 8)
            entries = struct.unpack(f"={size // PAGE}Q", pagemap.read(size // PAGE * 8))
            for entry in entries:
                if entry & PRESENT:
                    yield struct.unpack("=Q", os.pread(kernel.fileno(), 8, (entry & FRAME_MASK) * 8))[0]


def folios(path):
    sizes, current = collections.Counter(), 0
    for flags in flags_of_pages(path):
        if flags & COMPOUND_TAIL:
            current += 1
            continue
        if current:
            sizes[current * PAGE // 1024] += 1
        current = 1
    if current:
        sizes[current * PAGE // 1024] += 1
    return sizes


def main():
    if len(sys.argv) < 2 or sys.argv[1].startswith("-"):
        sys.exit(__doc__)
    paths = [os.path.realpath(path) for path in sys.argv[1:]]
    costs = {path: [] for path in paths}
    for _ in range(READS):
        for path in paths:
            costs[path].append(read_whole(path))
    for path in paths:
        found = ", ".join(f"{count} of {kib} KiB" for kib, count in sorted(folios(path).items()))
        print(f"{path}: {min(costs[path]) * 1000:.0f} ms per GiB; folios: {found}")


main()
