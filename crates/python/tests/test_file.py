"""Files: what `open` and `io` promise, and the syncs beside."""

from __future__ import annotations

import array
import errno
import io
import os
import random
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import syncline
from conftest import MIB

MODES = ["r", "w", "x", "a", "r+", "w+", "x+", "a+", "rb", "wb", "ab", "xb", "r+b", "w+b", "a+b", "rt", "w+t"]


@pytest.mark.parametrize("there", [True, False])
@pytest.mark.parametrize("mode", MODES)
def test_modes_do_what_the_builtin_open_does(
    volume: syncline.Volume, tmp_path: Path, mode: str, there: bool
) -> None:
    """The same steps on a file of the host and on one of the volume have the same results."""
    if there:
        (tmp_path / "file").write_text("content\n")
        (volume / "file").write_text("content\n")

    def steps(opened: Callable[[], Any]) -> list[object]:
        seen: list[object] = []
        try:
            with opened() as file:
                seen += [file.readable(), file.writable(), file.seekable(), file.tell()]
                acts: list[Callable[[], Any]] = [
                    lambda: file.read(3),
                    lambda: file.seek(0, 2),
                    lambda: file.write("xy" if isinstance(file, io.TextIOBase) else b"xy"),
                    lambda: file.flush(),
                    lambda: file.seek(1),
                    lambda: file.readline(),
                    lambda: file.truncate(3),
                    lambda: file.tell(),
                ]
                for act in acts:
                    try:
                        seen.append(act())
                    except (OSError, ValueError) as error:
                        seen.append(type(error).__name__)
        except OSError as error:
            seen.append(type(error).__name__)
        return seen

    theirs = steps(lambda: open(tmp_path / "file", mode))
    ours = steps(lambda: volume.open("file", mode))
    assert ours == theirs
    if (tmp_path / "file").exists():
        assert (volume / "file").read_text() == (tmp_path / "file").read_text()


@pytest.mark.parametrize("mode", ["", "rw", "z", "rbt", "rr", "+", "bt", "U"])
def test_wrong_modes_are_refused(volume: syncline.Volume, mode: str) -> None:
    with pytest.raises(ValueError):
        volume.open("file", mode)
    with pytest.raises(ValueError):
        volume.open("file", "w", 0)
    with pytest.raises(ValueError):
        volume.open("file", "wb", encoding="utf-8")
    assert not (volume / "file").exists()


def test_classes_are_those_of_io(volume: syncline.Volume) -> None:
    with volume.open("a", "wb", 0) as raw:
        assert isinstance(raw, io.RawIOBase)
        with pytest.raises(io.UnsupportedOperation):
            raw.fileno()
        assert not raw.isatty()
    for mode, kind in (("rb", io.BufferedReader), ("wb", io.BufferedWriter), ("r+b", io.BufferedRandom)):
        with volume.open("a", mode) as file:
            assert isinstance(file, kind)
    with volume.open("a", "w", encoding="latin-1", newline="\r\n") as text:
        assert isinstance(text, io.TextIOWrapper)
        text.write("ä\n")
    assert (volume / "a").read_bytes() == b"\xe4\r\n"


def test_random_operations_are_those_of_a_file_of_the_host(volume: syncline.Volume, tmp_path: Path) -> None:
    draw = random.Random(7)
    with open(tmp_path / "f", "w+b") as theirs, volume.open("f", "w+b") as ours:
        for _ in range(2000):
            kind = draw.randrange(6)
            if kind == 0:
                data = draw.randbytes(draw.choice([1, 100, 4096, 70000]))
                assert ours.write(data) == theirs.write(data)
            elif kind == 1:
                offset = draw.randrange(200000)
                assert ours.seek(offset) == theirs.seek(offset)
            elif kind == 2:
                size = draw.choice([0, 1, 5000, 100000])
                assert ours.read(size) == theirs.read(size)
            elif kind == 3:
                size = draw.randrange(200000)
                assert ours.truncate(size) == theirs.truncate(size)
            elif kind == 4:
                assert ours.tell() == theirs.tell()
            else:
                ours.sync(data_only=draw.random() < 0.5)
    assert (volume / "f").read_bytes() == (tmp_path / "f").read_bytes()


def test_any_contiguous_buffer_is_written_and_filled_in_place(volume: syncline.Volume) -> None:
    numbers = array.array("d", [1.5, 2.5, 3.5])
    with volume.open("a", "w+b", 0) as file:
        assert file.write(numbers) == 24
        assert file.write(memoryview(b"abcdef")[2:4]) == 2
        assert file.write(b"") == 0
        file.seek(0)
        filled = array.array("d", [0, 0, 0])
        assert file.readinto(filled) == 24
        assert filled == numbers
        part = bytearray(b"......")
        assert file.readinto(memoryview(part)[1:4]) == 2
        assert part == b".cd..."
        assert file.readinto(bytearray()) == 0
        with pytest.raises((TypeError, BufferError)):
            file.readinto(b"read-only")
        with pytest.raises((TypeError, BufferError)):
            file.write(memoryview(b"abcdef")[::2])
        with pytest.raises(TypeError):
            file.write("text")  # type: ignore[arg-type]
        assert file.pread(100, 24) == b"cd"
        assert file.pread(5, 1000) == b""
        assert file.preadinto(part, 24) == 2
        assert file.read(0) == b""


def test_a_buffer_in_use_cannot_change_its_size(volume: syncline.Volume) -> None:
    """While one thread's data is written, another one that resizes the buffer is refused, and nothing is torn."""
    data = bytearray(b"x" * (8 * MIB))
    refused = threading.Event()
    done = threading.Event()

    def resize() -> None:
        while not done.is_set():
            try:
                data.append(0)
                data.pop()
            except BufferError:
                refused.set()

    thread = threading.Thread(target=resize)
    thread.start()
    try:
        with volume.open("a", "w+b", 0) as file:
            for _ in range(200):
                assert file.pwrite(data, 0) in (8 * MIB, 8 * MIB + 1)
                assert file.preadinto(data, 0) >= 8 * MIB
                if refused.is_set():
                    break
    finally:
        done.set()
        thread.join()
    assert refused.is_set()
    assert set((volume / "a").read_bytes()[: 8 * MIB]) == {ord("x")}


def test_negative_and_huge_arguments_are_refused(volume: syncline.Volume) -> None:
    with volume.open("a", "w+b", 0) as file:
        # As of the functions of `os`.
        for act in (
            lambda: file.seek(-1),
            lambda: file.truncate(-1),
            lambda: file.pread(-1, 0),
            lambda: file.pread(1, -1),
            lambda: file.preadinto(bytearray(1), -1),
            lambda: file.pwrite(b"", -1),
            lambda: file.allocate(-1, 1),
            lambda: file.punch_hole(0, -1),
        ):
            with pytest.raises(OSError) as caught:
                act()
            assert caught.value.errno == errno.EINVAL
        for act in (lambda: file.pwrite(b"", 2**70), lambda: file.truncate(2**64 - 1), lambda: file.sync_range(-1, 5)):
            with pytest.raises(OverflowError):
                act()
        with pytest.raises(OSError) as caught:
            file.pwrite(b"x", 2**63 - 1)
        assert caught.value.errno == errno.EFBIG
        with pytest.raises(OSError):
            file.seek(0, 77)
        # A size that is asked for and not there takes no memory.
        assert file.read(2**62) == b""
        assert file.pread(2**62, 0) == b""


def test_holes_and_space(volume: syncline.Volume) -> None:
    with volume.open("a", "w+b", 0) as file:
        file.write(b"x" * 65536)
        file.punch_hole(4096, 4096)
        assert file.seek(0, os.SEEK_HOLE) == 4096
        assert file.seek(4096, os.SEEK_DATA) == 8192
        with pytest.raises(OSError) as caught:
            file.seek(1 << 20, os.SEEK_DATA)
        assert caught.value.errno == errno.ENXIO
        file.allocate(0, MIB, keep_size=True)
        assert file.stat().st_size == 65536
        file.allocate(0, MIB)
        assert file.stat().st_size == MIB
        assert file.write_back() >= 0


def test_layers_sync_what_they_buffer(image: Path) -> None:
    with syncline.Volume.create(image, 64 * MIB, commit_interval=3600) as volume:
        with volume.open("t", "w") as text, volume.open("b", "wb") as binary, volume.open("r", "w+b") as both:
            text.write("text")
            binary.write(b"binary")
            both.write(b"both")
            for file in (text, binary, both):
                before = volume.stats().device_flushes
                file.sync()
                assert volume.stats().device_flushes == before + 1
            text.write(" more")
            text.sync_range(0)
            assert text.sync_async().wait()
            assert (volume / "t").read_text() == "text more"


def test_closed_files_are_refused(volume: syncline.Volume) -> None:
    file = volume.open("a", "w+b", 0)
    file.close()
    file.close()
    for act in (
        lambda: file.read(1),
        lambda: file.write(b""),
        lambda: file.tell(),
        lambda: file.seek(0),
        lambda: file.sync(),
        lambda: file.sync_async(),
        lambda: file.readable(),
        lambda: file.stat(),
        lambda: file.truncate(),
    ):
        with pytest.raises(ValueError, match="closed file"):
            act()


def test_threads_share_a_file(volume: syncline.Volume) -> None:
    """Appends of several threads are each whole, and all there."""
    with volume.open("log", "ab", 0) as file:

        def append(letter: bytes) -> None:
            for _ in range(200):
                assert file.write(letter * 100) == 100

        threads = [threading.Thread(target=append, args=(bytes([65 + number]),)) for number in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    content = (volume / "log").read_bytes()
    pieces = [content[at : at + 100] for at in range(0, len(content), 100)]
    assert len(pieces) == 800
    assert sorted(set(pieces)) == [bytes([65 + number]) * 100 for number in range(4)]


def test_closing_while_others_read_and_write(image: Path) -> None:
    """Calls under way go on, later ones are refused, and the volume is closed and whole afterwards."""
    for _ in range(20):
        volume = syncline.Volume.create(image, 64 * MIB)
        file = volume.open("a", "w+b", 0)
        file.write(b"y" * MIB)
        failures: list[BaseException] = []

        def work(seed: int) -> None:
            buffer = bytearray(256 << 10)
            try:
                while True:
                    if seed % 2:
                        file.preadinto(buffer, 0)
                    else:
                        file.pwrite(buffer, 0)
                        file.sync()
            except ValueError as error:
                if "closed" not in str(error):
                    failures.append(error)
            except BaseException as error:
                failures.append(error)

        threads = [threading.Thread(target=work, args=(seed,)) for seed in range(4)]
        for thread in threads:
            thread.start()
        time.sleep(0.01)
        volume.close()
        for thread in threads:
            thread.join(30)
            assert not thread.is_alive()
        assert not failures
        with syncline.Volume(image) as volume:
            assert (volume / "a").stat().st_size == MIB
        image.unlink()


def test_the_interpreter_goes_on_while_a_thread_waits_for_the_device(volume: syncline.Volume) -> None:
    with volume.open("a", "wb", 0) as file:
        done = threading.Event()

        def sync() -> None:
            for _ in range(50):
                file.pwrite(b"z" * 65536, 0)
                file.sync()
            done.set()

        thread = threading.Thread(target=sync)
        thread.start()
        turns = 0
        while not done.is_set():
            turns += 1
        thread.join()
        assert turns > 50


def test_a_file_outlives_its_name(volume: syncline.Volume) -> None:
    with volume.open("a", "w+b", 0) as file:
        file.write(b"still here")
        (volume / "a").unlink()
        assert file.pread(20, 0) == b"still here"
        file.sync()
