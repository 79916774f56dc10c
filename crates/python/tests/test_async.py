"""Syncs that are started and awaited."""

from __future__ import annotations

import asyncio
import gc
import os
import threading
from pathlib import Path

import pytest
import syncline
from conftest import MIB


def test_many_syncs_share_flushes_and_have_no_thread_each(volume: syncline.Volume) -> None:
    async def sync_all() -> None:
        files = [volume.open(f"f{number}", "wb", 0) for number in range(200)]
        threads = threading.active_count()
        running = len(os.listdir("/proc/self/task"))
        before = volume.stats().device_flushes
        for _ in range(3):
            for file in files:
                file.write(b"x" * 100)
            await asyncio.gather(*(one(file) for file in files))
        # The engine may start a thread of its own for its device, but none for a sync.
        assert threading.active_count() == threads and len(os.listdir("/proc/self/task")) <= running + 4
        # Far fewer on a machine with time to spare.
        assert volume.stats().device_flushes - before < 600
        for file in files:
            file.close()

    async def one(file: syncline.File) -> None:
        await file.sync_async()

    asyncio.run(sync_all())


def test_the_loop_runs_while_a_sync_is_on_its_way(volume: syncline.Volume) -> None:
    async def both() -> int:
        turns = 0
        with volume.open("large", "wb", 0) as file:
            file.write(bytes(16 * MIB))
            ticket = file.sync_async()
            while not ticket.done():
                turns += 1
                await asyncio.sleep(0)
            await ticket
        return turns

    assert asyncio.run(both()) > 0


def test_a_ticket_may_be_awaited_and_waited_for_by_many(volume: syncline.Volume) -> None:
    async def wait(ticket: syncline.SyncTicket) -> None:
        await ticket

    async def many() -> None:
        with volume.open("a", "wb") as file:
            for _ in range(50):
                file.write(b"y" * 10000)
                ticket = file.sync_async(data_only=True)
                thread = threading.Thread(target=ticket.wait)
                thread.start()
                await asyncio.gather(*(wait(ticket) for _ in range(5)))
                thread.join()
                assert ticket.done() and ticket.wait() and ticket.wait(0)
                await ticket

    asyncio.run(many())


def test_loops_of_several_threads(volume: syncline.Volume) -> None:
    async def work(name: str) -> None:
        with volume.open(name, "wb", 0) as file:
            for _ in range(30):
                file.write(b"z" * 5000)
                await file.sync_async()

    threads = [threading.Thread(target=lambda n=n: asyncio.run(work(f"f{n}"))) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
        assert not thread.is_alive()
    assert {path.stat().st_size for path in volume.path().iterdir()} == {150000}


def test_a_cancelled_wait_leaves_the_sync_and_the_loop_alone(volume: syncline.Volume) -> None:
    async def cancel() -> None:
        with volume.open("a", "wb", 0) as file:
            for _ in range(20):
                file.write(bytes(MIB))
                ticket = file.sync_async()
                waiting = asyncio.ensure_future(asyncio.wait_for(_await(ticket), 0.0001))
                try:
                    await waiting
                except asyncio.TimeoutError:
                    pass
                await ticket
                assert ticket.done()

    asyncio.run(cancel())


async def _await(ticket: syncline.SyncTicket) -> None:
    await ticket


def test_a_sync_on_a_volume_that_is_only_read_ends_at_once(image: Path) -> None:
    with syncline.Volume.create(image, 64 * MIB) as volume:
        volume.open("a", "wb", 0).close()
    with syncline.Volume(image, read_only=True) as volume, volume.open("a", "rb", 0) as file:
        asyncio.run(_await(file.sync_async()))


def test_timeouts(volume: syncline.Volume) -> None:
    with volume.open("a", "wb", 0) as file:
        file.write(bytes(MIB))
        ticket = file.sync_async(0, 4096)
        assert ticket.wait(timeout=30)
        with pytest.raises(ValueError):
            ticket.wait(timeout=-1)


def test_tickets_outlive_their_files_and_loops(image: Path) -> None:
    volume = syncline.Volume.create(image, 64 * MIB)

    async def start() -> syncline.SyncTicket:
        with volume.open("a", "wb", 0) as file:
            file.write(b"kept")
            return file.sync_async()

    ticket = asyncio.run(start())
    assert ticket.wait(30)
    volume.close()
    assert ticket.done()
    gc.collect()
