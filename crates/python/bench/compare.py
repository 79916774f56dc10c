"""Python and C beside Rust, and fsspec beside the host's files: the figures of docs/python.md.

Both sides do the same steps on images in the same directory, in turns: each round runs one and then the other, in
changing order. What is told is the median of the rounds, and the median of the rounds' ratios.
"""

from __future__ import annotations

import argparse
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import syncline

PAGE = bytes([7]) * 4096
PAGES = 1024


class Other:
    """The same steps by another language: Rust, which all are held against, or C."""

    def __init__(self, program: str, image: Path) -> None:
        self._process = subprocess.Popen(
            [program, str(image)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )

    def seconds(self, command: str) -> float:
        assert self._process.stdin is not None and self._process.stdout is not None
        self._process.stdin.write(command + "\n")
        self._process.stdin.flush()
        return int(self._process.stdout.readline()) / 1e9

    def close(self) -> None:
        self._process.communicate()


def rounds(number: int, first: Callable[[], float], second: Callable[[], float]) -> tuple[float, float, float]:
    """Medians of both, and of the ratio of the second to the first."""
    firsts, seconds = [], []
    for turn in range(number + 1):
        if turn % 2:
            theirs = first()
            ours = second()
        else:
            ours = second()
            theirs = first()
        # The first round warms up.
        if turn:
            firsts.append(theirs)
            seconds.append(ours)
    ratios = [ours / theirs for theirs, ours in zip(firsts, seconds)]
    return statistics.median(firsts), statistics.median(seconds), statistics.median(ratios)


def c_beside_rust(rust: Other, c: Other, syncs: int, mib: int, number: int) -> None:
    for what, command in (("4 KiB write + sync", f"sync {syncs}"), (f"reading {mib} MiB", f"read {mib}")):
        theirs, ours, ratio = rounds(number, lambda: rust.seconds(command), lambda: c.seconds(command))
        print(f"{what}: Rust {theirs * 1e3:.1f} ms, C {ours * 1e3:.1f} ms, ratio {ratio:.3f}")


def syncs(rust: Other, volume: syncline.Volume, count: int, number: int) -> None:
    page = 0
    with volume.open("/pages", "w+b", buffering=0) as file:

        def ours() -> float:
            nonlocal page
            began = time.perf_counter()
            for _ in range(count):
                file.pwrite(PAGE, page % PAGES * 4096)
                file.sync()
                page += 1
            return time.perf_counter() - began

        theirs, mine, ratio = rounds(number, lambda: rust.seconds(f"sync {count}"), ours)
    rust_us, python_us = theirs / count * 1e6, mine / count * 1e6
    print(f"4 KiB write + sync: Rust {rust_us:.1f} us, Python {python_us:.1f} us, ratio {ratio:.3f}")


def reads(rust: Other, volume: syncline.Volume, mib: int, number: int) -> None:
    try:
        import numpy
    except ImportError:
        print("reading into numpy: numpy is not installed")
        return
    array = numpy.ones(mib << 20, dtype="uint8")
    (volume / "large").write_bytes(array)
    volume.sync()
    volume.checkpoint()
    with volume.open("/large", "rb", buffering=0) as file:

        def ours() -> float:
            began = time.perf_counter()
            assert file.preadinto(array, 0) == len(array)
            return time.perf_counter() - began

        theirs, mine, ratio = rounds(number, lambda: rust.seconds(f"read {mib}"), ours)
    gib = mib / 1024
    print(
        f"{mib} MiB into a numpy array: Rust {gib / theirs:.2f} GiB/s, Python {gib / mine:.2f} GiB/s, "
        f"rate {1 / ratio:.3f} of Rust's"
    )


def tree(directory: Path, files: int) -> Path:
    source = directory / "source"
    for number in range(files):
        parent = source / f"{number // 100:04}"
        if number % 100 == 0:
            parent.mkdir(parents=True)
        (parent / f"{number:06}").write_bytes(os.urandom(2048 + number % 4096))
    return source


def imports(directory: Path, volume: syncline.Volume, files: int, number: int) -> None:
    try:
        from fsspec.implementations.local import LocalFileSystem
        from syncline.fsspec import SynclineFileSystem
    except ImportError:
        print("a tree through fsspec: fsspec is not installed")
        return
    source, target = tree(directory, files), directory / "target"
    fs, local = SynclineFileSystem(volume=volume), LocalFileSystem()

    def theirs() -> float:
        shutil.rmtree(target, ignore_errors=True)
        os.sync()
        began = time.perf_counter()
        local.put(str(source), str(target), recursive=True)
        os.sync()
        return time.perf_counter() - began

    def ours() -> float:
        if fs.exists("/target"):
            fs.rm("/target", recursive=True)
        volume.checkpoint()
        began = time.perf_counter()
        fs.put(str(source), "/target", recursive=True)
        fs.sync()
        return time.perf_counter() - began

    host, mine, ratio = rounds(number, theirs, ours)
    kind = subprocess.run(["stat", "-f", "-c", "%T", directory], capture_output=True, text=True).stdout.strip()
    print(
        f"{files} files through fsspec's put, and a sync: LocalFileSystem on {kind} {host:.2f} s, "
        f"SynclineFileSystem {mine:.2f} s, ratio {ratio:.2f}"
    )


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("--rust", required=True, help="the example `baseline` of the library")
    arguments.add_argument("--c", default=None, help="the example `baseline` of libsyncline")
    arguments.add_argument("--directory", default=None, help="where the images lie")
    arguments.add_argument("--rounds", type=int, default=9)
    arguments.add_argument("--syncs", type=int, default=500, help="of each round")
    arguments.add_argument("--mib", type=int, default=256)
    arguments.add_argument("--files", type=int, default=5000)
    chosen = arguments.parse_args()
    load = " ".join(f"{one:.1f}" for one in os.getloadavg())
    print(f"Python {sys.version.split()[0]}, {chosen.rounds} rounds, load {load}")
    with tempfile.TemporaryDirectory(dir=chosen.directory) as name:
        directory = Path(name)
        rust = Other(chosen.rust, directory / "rust.img")
        if chosen.c:
            c = Other(chosen.c, directory / "c.img")
            c_beside_rust(rust, c, chosen.syncs, chosen.mib, chosen.rounds)
            c.close()
        with syncline.Volume.create(directory / "python.img", 4 << 30) as volume:
            syncs(rust, volume, chosen.syncs, chosen.rounds)
            reads(rust, volume, chosen.mib, chosen.rounds)
            imports(directory, volume, chosen.files, min(chosen.rounds, 5))
        rust.close()


if __name__ == "__main__":
    main()
