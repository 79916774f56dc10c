"""A forked child is refused with a sentence, and never hangs."""

from __future__ import annotations

import gc
import multiprocessing
import os
import threading
import traceback
from collections.abc import Callable
from pathlib import Path

import pytest
import syncline
from conftest import MIB, is_forked

pytestmark = pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")


def in_child(act: Callable[[], None]) -> None:
    """Runs something in a forked child; an exception there, and a hang, is a failure here."""
    child = os.fork()
    if child == 0:
        code = 1
        try:
            act()
            code = 0
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(code)
    for _ in range(600):
        done, status = os.waitpid(child, os.WNOHANG)
        if done:
            assert status == 0
            return
        threading.Event().wait(0.05)
    os.kill(child, 9)
    os.waitpid(child, 0)
    pytest.fail("the child hangs")


def refused(act: Callable[[], object]) -> None:
    try:
        act()
    except OSError as error:
        assert is_forked(error), error
    else:
        raise AssertionError("it was not refused")


def test_everything_a_child_inherits_is_refused(volume: syncline.Volume, image: Path) -> None:
    file = volume.open("a", "w+b", 0)
    file.write(b"parent")
    text = volume.open("t", "w")
    t = volume.transaction()
    t.write_text("/b", "x")
    ticket = file.sync_async()

    def child() -> None:
        for act in (
            lambda: file.read(1),
            lambda: file.write(b"x"),
            lambda: file.pread(1, 0),
            lambda: file.tell(),
            lambda: file.sync(),
            lambda: file.stat(),
            lambda: ticket.wait(),
            lambda: t.read_bytes("/b"),
            lambda: t.commit(),
            lambda: volume.sync(),
            lambda: volume.stats(),
            lambda: volume.open("a"),
            lambda: (volume / "a").read_bytes(),
            lambda: (volume / "a").unlink(),
            lambda: list(volume.path().iterdir()),
            lambda: volume.close(),
            lambda: syncline.Volume(image),
            lambda: syncline.Volume.in_memory(64 * MIB),
        ):
            refused(act)
        file.close()
        text.close()
        gc.collect()

    in_child(child)
    text.write("parent")
    text.close()
    t.commit()
    file.sync()
    assert file.pread(10, 0) == b"parent" and (volume / "b").read_text() == "x"
    file.close()


def test_a_fork_amid_the_calls_of_other_threads_never_hangs(volume: syncline.Volume) -> None:
    file = volume.open("a", "w+b", 0)
    done = threading.Event()
    t = volume.transaction()

    def work(number: int) -> None:
        while not done.is_set():
            file.pwrite(b"w" * 8192, number * 8192)
            file.sync_async().wait()
            if number == 0:
                t.write_bytes("/x", b"x" * 100000)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(3)]
    for thread in threads:
        thread.start()

    def child() -> None:
        refused(lambda: file.sync())
        refused(lambda: volume.stats())
        refused(lambda: volume.close())
        t.abort()
        file.close()

    try:
        for _ in range(15):
            in_child(child)
    finally:
        done.set()
        for thread in threads:
            thread.join()
    t.abort()
    file.close()


def _worker(image: str) -> str:
    try:
        with syncline.Volume(image) as volume:
            return (volume / "a").read_text()
    except OSError as error:
        return f"{error.errno}: {error.strerror}"


def test_multiprocessing(image: Path) -> None:
    """Forked workers are told; those that were started anew take their turns."""
    syncline.Volume.create(image, 64 * MIB).close()
    with syncline.Volume(image) as volume:
        (volume / "a").write_text("told")
        with multiprocessing.get_context("fork").Pool(2) as pool:
            for answer in pool.map(_worker, [str(image)] * 2):
                assert "forked child" in answer
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        assert pool.map(_worker, [str(image)] * 2) == ["told", "told"]
    with multiprocessing.get_context("fork").Pool(1) as pool:
        assert pool.map(_worker, [str(image)]) == ["told"], "forked while no volume was open"
