"""Transactions: all or nothing."""

from __future__ import annotations

import asyncio
import errno
import io
import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest
import syncline
from conftest import MIB


def test_a_block_commits_at_its_end_by_one_write_and_one_flush(volume: syncline.Volume) -> None:
    (volume / "b").write_text("old")
    volume.sync()
    before = volume.stats()
    with volume.transaction() as t:
        t.write_bytes("/a", b"1")
        t.write_text("/b", "new")
        with t.open("/c", "xb") as file:
            file.write(b"c" * 100)
        t.setxattr("/a", "user.k", b"v")
        assert not (volume / "a").exists()
        assert t.exists("/a") and t.read_text("/b") == "new"
        assert (volume / "b").read_text() == "old"
    after = volume.stats()
    assert t.ended
    assert after.device_flushes - before.device_flushes == 1
    assert after.device_writes - before.device_writes == 1
    assert (volume / "b").read_text() == "new" and (volume / "c").read_bytes() == b"c" * 100
    assert (volume / "a").getxattr("user.k") == b"v"


def test_an_exception_leaves_everything_as_it_was(volume: syncline.Volume) -> None:
    (volume / "a").write_text("old")
    with pytest.raises(KeyError):
        with volume.transaction() as t:
            file = t.open("/a", "w")
            file.write("buffered, never staged")
            t.rename("/a", "/b")
            t.write_text("/c", "x")
            raise KeyError("mine")
    assert file.closed and t.ended
    assert [str(path) for path in volume.path().iterdir()] == ["/a"]
    assert (volume / "a").read_text() == "old"


def test_what_files_of_the_transaction_buffer_is_committed(volume: syncline.Volume) -> None:
    with volume.transaction() as t:
        file = t.open("/a", "w")
        file.write("buffered")
    assert file.closed and (volume / "a").read_text() == "buffered"


def test_a_conflict_is_an_error_of_its_own_and_applies_nothing(volume: syncline.Volume) -> None:
    (volume / "a").write_text("0")
    first, second = volume.transaction(), volume.transaction()
    first.write_text("/a", "1")
    second.write_text("/a", "2")
    second.write_text("/b", "2")
    first.commit()
    with pytest.raises(syncline.ConflictError, match="begin it again") as caught:
        second.commit()
    assert isinstance(caught.value, BlockingIOError) and caught.value.errno == errno.EAGAIN
    assert (volume / "a").read_text() == "1" and not (volume / "b").exists()
    with pytest.raises(ValueError, match="has ended"):
        second.commit()


def test_threads_that_count_together_lose_nothing(volume: syncline.Volume) -> None:
    (volume / "count").write_text("0")

    def count() -> None:
        for _ in range(25):
            while True:
                try:
                    with volume.transaction() as t:
                        t.write_text("/count", str(int(t.read_text("/count")) + 1))
                    break
                except syncline.ConflictError:
                    continue

    threads = [threading.Thread(target=count) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert (volume / "count").read_text() == "100"


def test_files_in_a_transaction_are_like_files(volume: syncline.Volume) -> None:
    (volume / "a").write_bytes(b"0123456789")
    with volume.transaction() as t:
        with t.open("/a", "r+b") as file:
            assert file.read(3) == b"012"
            file.seek(-2, os.SEEK_END)
            file.write(b"XY")
            file.truncate(11)
            file.seek(0)
            assert file.read() == b"01234567XY\0"
        with t.open("/a", "ab", 0) as raw:
            assert raw.tell() == 11
            raw.seek(0)
            raw.write(b"end")
        with t.open("/a", "rb") as file:
            with pytest.raises(io.UnsupportedOperation):
                file.write(b"")
        with pytest.raises(FileNotFoundError):
            t.open("/missing")
        with pytest.raises(FileExistsError):
            t.open("/a", "x")
        with pytest.raises(FileNotFoundError):
            t.unlink("/missing")
        t.link("/a", "/b")
        t.unlink("/a")
    assert (volume / "b").read_bytes() == b"01234567XY\0end"
    assert not (volume / "a").exists()


def test_a_transaction_joins_an_open_file(volume: syncline.Volume) -> None:
    with volume.open("a", "w+b") as file:
        file.write(b"before")
        with volume.transaction() as t:
            joined = t.join(file)
            joined.seek(6)
            joined.write(b" and after")
        file.seek(0)
        assert file.read() == b"before and after"
    with volume.open("a", "rb") as reader, volume.transaction() as t:
        with pytest.raises(OSError) as caught:
            t.join(reader)
        assert caught.value.errno == errno.EBADF


def test_ended_transactions_are_refused(volume: syncline.Volume) -> None:
    t = volume.transaction()
    t.abort()
    t.abort()
    for act in (t.commit, lambda: t.write_bytes("/a", b""), lambda: t.exists("/a"), t.commit_async):
        with pytest.raises(ValueError, match="has ended"):
            act()
    with volume.transaction() as t:
        t.write_text("/a", "x")
        t.commit()
    assert (volume / "a").exists()


def test_closing_the_volume_ends_its_transactions(image: Path) -> None:
    volume = syncline.Volume.create(image, 64 * MIB)
    t = volume.transaction()
    t.write_text("/a", "x")
    volume.close()
    assert t.ended
    with syncline.Volume(image) as volume:
        assert not (volume / "a").exists()


def test_a_transaction_is_one_threads_at_a_time(volume: syncline.Volume) -> None:
    """Threads that meet in a transaction are refused, none waits, and aborting under way aborts."""
    t = volume.transaction()
    refused = threading.Event()
    data = bytes(4 * MIB)

    def write(name: str) -> None:
        for _ in range(200):
            try:
                t.write_bytes(name, data)
            except RuntimeError:
                refused.set()
            except ValueError:
                return

    threads = [threading.Thread(target=write, args=(f"/{number}",)) for number in range(3)]
    for thread in threads:
        thread.start()
    assert refused.wait(60)
    t.abort()
    for thread in threads:
        thread.join(60)
        assert not thread.is_alive()
    assert t.ended and list(volume.path().iterdir()) == []


def test_async_commit(volume: syncline.Volume) -> None:
    async def change() -> None:
        async with volume.transaction() as t:
            t.write_text("/a", "1")
        t = volume.transaction()
        t.write_text("/b", "2")
        await t.commit_async()
        with pytest.raises(KeyError):
            async with volume.transaction() as t:
                t.write_text("/c", "3")
                raise KeyError
        first, second = volume.transaction(), volume.transaction()
        first.write_text("/a", "x")
        second.write_text("/a", "y")
        first.commit()
        with pytest.raises(syncline.ConflictError):
            await second.commit_async()

    asyncio.run(change())
    assert sorted(path.name for path in volume.path().iterdir()) == ["a", "b"]


def test_a_killed_process_leaves_all_or_nothing(image: Path) -> None:
    """A process is killed amid transactions over two files: they are equal afterwards, and not older than was told."""
    syncline.Volume.create(image, 64 * MIB).close()
    program = f"""
import itertools, sys, syncline
volume = syncline.Volume({str(image)!r})
for number in itertools.count():
    with volume.transaction() as t:
        t.write_text("/a", str(number))
        t.write_text("/b", str(number))
    print(number, flush=True)
"""
    for acknowledged in (3, 40, 111):
        child = subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True)
        assert child.stdout is not None
        last = -1
        while last < acknowledged:
            last = int(child.stdout.readline())
        child.kill()
        rest = child.stdout.read().split()
        child.stdout.close()
        child.wait()
        last = int(rest[-1]) if rest else last
        with syncline.Volume(image) as volume:
            found = int((volume / "a").read_text())
            assert (volume / "b").read_text() == str(found)
            assert found in (last, last + 1)
