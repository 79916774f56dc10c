"""Syncs that were started: for threads to wait for, and for asyncio to await.

An event loop watches one descriptor for all syncs that its tasks await. No thread is started, and no thread of the
library ever waits for the interpreter.
"""

from __future__ import annotations

import asyncio
import itertools
import weakref
from collections.abc import Generator
from typing import Any

from . import _native


class SyncTicket:
    """A sync that is on its way. It goes on if nobody waits for it, and its result may be asked for at any time.

    >>> import asyncio, syncline
    >>> volume = syncline.Volume.in_memory(64 << 20)
    >>> file = volume.open("/ledger", "wb", buffering=0)
    >>> file.write(b"42 coins")
    8
    >>> ticket = file.sync_async()
    >>> ticket.wait()
    True
    >>> async def durably(file):
    ...     await file.sync_async()
    >>> asyncio.run(durably(file))
    >>> volume.close()
    """

    __slots__ = ("_native",)

    def __init__(self, native: _native.SyncTicket) -> None:
        self._native = native

    def done(self) -> bool:
        """Whether the sync has ended, well or not. Waits for nothing."""
        return self._native.done()

    def wait(self, timeout: float | None = None) -> bool:
        """Waits until the sync has ended: `False` if `timeout` seconds were over first. Raises the sync's error."""
        return self._native.wait(timeout)

    def __await__(self) -> Generator[Any, None, None]:
        return self._ended().__await__()

    async def _ended(self) -> None:
        if not self._native.done():
            loop = asyncio.get_running_loop()
            waits = _waits.get(loop)
            if waits is None:
                waits = _waits[loop] = _Waits()
            await waits.until(loop, self._native)
        self._native.wait()


class _Waits:
    """What the tasks of one event loop await."""

    def __init__(self) -> None:
        self._wakeups = _native.Wakeups()
        self._tokens = itertools.count()
        self._futures: dict[int, asyncio.Future[None]] = {}

    async def until(self, loop: asyncio.AbstractEventLoop, ticket: _native.SyncTicket) -> None:
        token, ended = next(self._tokens), loop.create_future()
        if not self._futures:
            loop.add_reader(self._wakeups.fileno(), self._take)
        self._futures[token] = ended
        try:
            ticket.tell(self._wakeups, token)
            await ended
        finally:
            del self._futures[token]
            # A loop that nobody waits in any more is left as it was.
            if not self._futures:
                loop.remove_reader(self._wakeups.fileno())

    def _take(self) -> None:
        for token in self._wakeups.take():
            ended = self._futures.get(token)
            if ended is not None and not ended.done():
                ended.set_result(None)


_waits: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, _Waits] = weakref.WeakKeyDictionary()
