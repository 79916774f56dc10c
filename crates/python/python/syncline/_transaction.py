"""Transactions."""

from __future__ import annotations

import contextlib
import io
import os
import weakref
from types import TracebackType
from typing import TYPE_CHECKING, Any, Callable

from . import _modes, _native
from ._modes import Layers
from ._ticket import SyncTicket

if TYPE_CHECKING:
    from typing_extensions import Buffer

    from ._file import BufferedRandom, BufferedReader, BufferedWriter, File, TextFile
    from ._volume import Name

_LAYERS = Layers(io.BufferedReader, io.BufferedWriter, io.BufferedRandom, io.TextIOWrapper)


class Transaction:
    """Changes of any number of files that are made together: nobody sees any of them before the commit, all are there
    and durable afterwards, and after a crash all or none.

    A ``with`` block commits at its end and aborts at an exception. ``async with`` awaits the commit.

    It works on what is committed, with its own changes over that. If somebody else has changed the same meanwhile, the
    commit raises `ConflictError` and nothing of it is applied: begin it again. Threads use it one at a time.

    >>> import syncline
    >>> volume = syncline.Volume.in_memory(64 << 20)
    >>> _ = (volume / "balance").write_text("10")
    >>> try:
    ...     with volume.transaction() as t:
    ...         _ = t.write_text("/balance", "0")
    ...         raise RuntimeError("changed my mind")
    ... except RuntimeError:
    ...     (volume / "balance").read_text()
    '10'
    >>> with volume.transaction() as t, t.open("/balance", "r+") as file:
    ...     balance = int(file.read())
    ...     _ = file.seek(0)
    ...     _ = file.write(str(balance + 1))
    >>> (volume / "balance").read_text()
    '11'
    >>> volume.close()
    """

    def __init__(self, native: _native.Transaction, name_of: Callable[[Name], str]) -> None:
        self._native = native
        self._name = name_of
        self._files: weakref.WeakSet[Any] = weakref.WeakSet()
        self._discards = False

    def __enter__(self) -> Transaction:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is not None:
            self.abort()
        elif not self.ended:
            self.commit()

    async def __aenter__(self) -> Transaction:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is not None:
            self.abort()
        elif not self.ended:
            await self.commit_async()

    @property
    def ended(self) -> bool:
        """Whether it was committed or aborted."""
        return self._native.ended

    def open(
        self,
        path: Name,
        mode: str = "r",
        buffering: int = -1,
        encoding: str | None = None,
        errors: str | None = None,
        newline: str | None = None,
        *,
        permissions: int = 0o666,
    ) -> Any:
        """Opens a file within the transaction, with the builtin `open`'s arguments. It ends with the transaction."""
        how = _modes.parse(mode)
        _modes.check(how, buffering, encoding, errors, newline)
        name = self._name(path)
        there = how.letter != "x" and self._native.exists(name)
        if there or how.letter == "r":
            staged = self._native.open(name)
        else:
            staged = self._native.create(name, permissions)
        raw = TransactionFile(self, staged, name, how)
        if how.letter == "w" and there:
            raw._resize(0)
        file = _modes.layered(raw, how, buffering, encoding, errors, newline, _LAYERS)
        self._files.add(file)
        return file

    def join(self, file: File | BufferedReader | BufferedWriter | BufferedRandom | TextFile) -> TransactionFile:
        """Works on a file of the volume that is open for writing, whatever its name is by now."""
        file.flush()
        raw: File = file if isinstance(file, io.RawIOBase) else file._file()
        joined = TransactionFile(self, self._native.join(raw._native), raw.name, _modes.parse("r+b"))
        self._files.add(joined)
        return joined

    def read_bytes(self, path: Name) -> bytes:
        """The whole content of a file, as the transaction sees it."""
        return self._native.read(self._name(path))

    def read_text(self, path: Name, encoding: str | None = None, errors: str | None = None) -> str:
        """The whole content of a file of text, as the transaction sees it."""
        with self.open(path, "r", encoding=encoding, errors=errors) as file:
            text: str = file.read()
            return text

    def write_bytes(self, path: Name, data: Buffer) -> int:
        """Makes a file or replaces its content; returns how many bytes."""
        return self._native.write(self._name(path), data)

    def write_text(
        self,
        path: Name,
        data: str,
        encoding: str | None = None,
        errors: str | None = None,
        newline: str | None = None,
    ) -> int:
        """Makes a file or replaces its content; returns how many characters."""
        with self.open(path, "w", encoding=encoding, errors=errors, newline=newline) as file:
            count: int = file.write(data)
            return count

    def exists(self, path: Name) -> bool:
        """Whether a name is taken, as the transaction sees it."""
        return self._native.exists(self._name(path))

    def rename(self, path: Name, target: Name) -> None:
        """Renames a file, replacing the one that has the new name."""
        self._native.rename(self._name(path), self._name(target))

    def replace(self, path: Name, target: Name) -> None:
        """As `rename`."""
        self.rename(path, target)

    def link(self, original: Name, link: Name) -> None:
        """Gives a file another name."""
        self._native.link(self._name(original), self._name(link))

    def unlink(self, path: Name) -> None:
        """Removes a name of a file."""
        self._native.unlink(self._name(path))

    def setxattr(self, path: Name, name: str, value: Buffer) -> None:
        """Sets an extended attribute."""
        self._native.setxattr(self._name(path), name, value)

    def removexattr(self, path: Name, name: str) -> None:
        """Removes an extended attribute."""
        self._native.removexattr(self._name(path), name)

    def commit(self) -> None:
        """Applies everything and makes it durable: one journal record, one flush. Files of the transaction are closed.

        Raises `ConflictError` if somebody else has changed the same meanwhile, and `OSError`; nothing is applied then.
        """
        self._close_files()
        self._native.commit()

    def commit_async(self) -> SyncTicket:
        """Applies everything and starts making it durable; the ticket tells when it is, or why it was not committed."""
        self._close_files()
        return SyncTicket(self._native.commit_async())

    def abort(self) -> None:
        """Leaves everything as it was. Does nothing if the transaction has ended."""
        self._discards = True
        self._native.abort()
        for file in list(self._files):
            with contextlib.suppress(OSError, ValueError):
                file.close()

    def _close_files(self) -> None:
        try:
            for file in list(self._files):
                file.close()
        except BaseException:
            self.abort()
            raise


class TransactionFile(io.RawIOBase):
    """A file as a transaction sees it."""

    def __init__(
        self, transaction: Transaction, staged: _native.StagedFile, name: str, mode: _modes.Mode
    ) -> None:
        self._transaction = transaction
        self._staged = staged
        self._how = mode
        self._position = 0
        self.name = name
        self.mode = mode.name
        if mode.letter == "a":
            self._position = self._size()

    def readable(self) -> bool:
        """Whether the file was opened for reading."""
        return self._how.readable

    def writable(self) -> bool:
        """Whether the file was opened for writing."""
        return self._how.writable

    def seekable(self) -> bool:
        """Always."""
        return True

    def readinto(self, buffer: Buffer) -> int:
        """Fills a buffer from the position; fewer bytes only at the end of the file."""
        self._check(self._how.readable, "reading")
        count = self._transaction._native.preadinto(self._staged, buffer, self._position)
        self._position += count
        return count

    def write(self, data: Buffer, /) -> int:
        """Stages the bytes of any contiguous buffer at the position, or at the end of a file opened for appending."""
        self._check(self._how.writable, "writing")
        if self._transaction._discards:
            # What a buffer of an aborted transaction still holds goes where the rest went.
            return memoryview(data).nbytes
        if self._how.letter == "a":
            self._position = self._size()
        count = self._transaction._native.pwrite(self._staged, data, self._position)
        self._position += count
        return count

    def seek(self, offset: int, whence: int = os.SEEK_SET, /) -> int:
        """Moves the position and returns it."""
        self._check(True, "")
        if whence not in (os.SEEK_SET, os.SEEK_CUR, os.SEEK_END):
            raise ValueError(f"invalid whence: {whence}")
        base = 0 if whence == os.SEEK_SET else self._position if whence == os.SEEK_CUR else self._size()
        if base + offset < 0:
            raise ValueError(f"negative seek position {base + offset}")
        self._position = base + offset
        return self._position

    def tell(self) -> int:
        """The position."""
        self._check(True, "")
        return self._position

    def truncate(self, size: int | None = None, /) -> int:
        """Cuts the file off, or extends it with a hole, at `size` or at the position."""
        self._check(self._how.writable, "writing")
        size = self._position if size is None else size
        self._resize(size)
        return size

    def _resize(self, size: int) -> None:
        self._transaction._native.truncate(self._staged, size)

    def _size(self) -> int:
        return self._transaction._native.size(self._staged)

    def _check(self, allowed: bool, what: str) -> None:
        if self.closed:
            raise ValueError("I/O operation on closed file")
        if not allowed:
            raise io.UnsupportedOperation(f"the file is not open for {what}")
