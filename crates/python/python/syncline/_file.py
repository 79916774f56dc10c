"""Open files: the raw one, and the layers of `io` over it, which can be synced too."""

from __future__ import annotations

import io
import os
from typing import TYPE_CHECKING, Any

from . import _native
from ._modes import Layers
from ._stat import stat_result
from ._ticket import SyncTicket

if TYPE_CHECKING:
    from typing_extensions import Buffer

_END = 2**64 - 1


class File(io.RawIOBase):
    """An open file without a buffer: each call is a call of the library, and the interpreter's lock is given up in it.

    Threads may share it; they share its position. `pread`, `preadinto` and `pwrite` do not use the position. Closing
    it does not make it durable: `sync` does.

    >>> import syncline
    >>> volume = syncline.Volume.in_memory(64 << 20)
    >>> with volume.open("/greeting", "w+b", buffering=0) as file:
    ...     _ = file.write(b"hello")
    ...     _ = file.pwrite(b"J", 0)
    ...     file.sync()
    ...     file.pread(5, 0)
    b'Jello'
    >>> volume.close()
    """

    def __init__(self, native: _native.File, name: str, mode: str, readable: bool, writable: bool) -> None:
        self._native = native
        self.name = name
        self.mode = mode
        self._readable = readable
        self._writable = writable

    def __repr__(self) -> str:
        state = " closed" if self.closed else ""
        return f"<syncline.File{state} name={self.name!r} mode={self.mode!r}>"

    def readable(self) -> bool:
        """Whether the file was opened for reading."""
        self._check_open()
        return self._readable

    def writable(self) -> bool:
        """Whether the file was opened for writing."""
        self._check_open()
        return self._writable

    def seekable(self) -> bool:
        """Always."""
        self._check_open()
        return True

    def readinto(self, buffer: Buffer) -> int:
        """Fills a buffer from the position, without a copy in between; fewer bytes only at the end of the file.

        >>> import array, syncline
        >>> volume = syncline.Volume.in_memory(64 << 20)
        >>> (volume / "numbers").write_bytes(array.array("d", [1, 2, 3]).tobytes())
        24
        >>> numbers = array.array("d", [0, 0, 0])
        >>> with volume.open("/numbers", "rb", buffering=0) as file:
        ...     file.readinto(numbers)
        24
        >>> numbers
        array('d', [1.0, 2.0, 3.0])
        >>> volume.close()
        """
        if not self._readable:
            raise self._unsupported("reading")
        return self._native.readinto(buffer)

    def read(self, size: int | None = -1, /) -> bytes:
        """At most `size` bytes from the position; all that is left if it is negative or `None`."""
        if not self._readable:
            raise self._unsupported("reading")
        return self._native.read(-1 if size is None else size)

    def readall(self) -> bytes:
        """All that is left from the position."""
        return self.read(-1)

    def write(self, data: Buffer, /) -> int:
        """Writes the bytes of any contiguous buffer at the position, or at the end; returns how many were written."""
        if not self._writable:
            raise self._unsupported("writing")
        return self._native.write(data)

    def pread(self, size: int, offset: int) -> bytes:
        """At most `size` bytes from `offset`; fewer only at the end of the file. The position stays."""
        if not self._readable:
            raise self._unsupported("reading")
        return self._native.pread(size, offset)

    def preadinto(self, buffer: Buffer, offset: int) -> int:
        """Fills a buffer from `offset`; fewer bytes only at the end of the file. The position stays."""
        if not self._readable:
            raise self._unsupported("reading")
        return self._native.preadinto(buffer, offset)

    def pwrite(self, data: Buffer, offset: int) -> int:
        """Writes at `offset` (at the end if the file was opened for appending); returns how many bytes were written."""
        if not self._writable:
            raise self._unsupported("writing")
        return self._native.pwrite(data, offset)

    def seek(self, offset: int, whence: int = os.SEEK_SET, /) -> int:
        """Moves the position and returns it. `os.SEEK_DATA` and `os.SEEK_HOLE` find data and holes."""
        return self._native.seek(offset, whence)

    def tell(self) -> int:
        """The position."""
        return self._native.tell()

    def truncate(self, size: int | None = None, /) -> int:
        """Cuts the file off, or extends it with a hole, at `size` or at the position. The position stays."""
        if not self._writable:
            raise self._unsupported("writing")
        return self._native.truncate(size)

    def allocate(self, offset: int, length: int, *, keep_size: bool = False) -> None:
        """Allocates space for a range, so that writes to it do not run out of space."""
        self._native.allocate(offset, length, keep_size)

    def punch_hole(self, offset: int, length: int) -> None:
        """Gives a range's space back; it reads as zeros."""
        self._native.punch_hole(offset, length)

    def stat(self) -> os.stat_result:
        """Attributes, as `os.fstat` tells them."""
        return stat_result(self._native.stat())

    def sync(self, *, data_only: bool = False) -> None:
        """Makes content and attributes durable, and every earlier change of names on the volume: one write, one flush.

        With `data_only` only what is needed to read the content back.
        """
        self._native.sync(data_only)

    def sync_range(self, start: int, end: int | None = None, *, data_only: bool = False) -> None:
        """Makes the bytes from `start` up to `end` (or the file's end) durable, and no other page of the file."""
        self._native.sync_range(start, _END if end is None else end, data_only)

    def sync_async(self, start: int = 0, end: int | None = None, *, data_only: bool = False) -> SyncTicket:
        """Starts a sync and returns at once; the ticket can be awaited and waited for.

        It makes durable what the file is at this call.
        """
        return SyncTicket(self._native.sync_async(start, _END if end is None else end, data_only))

    def write_back(self, start: int = 0, end: int | None = None) -> int:
        """Starts writing dirty pages of a range, so that a later sync has less to do; returns how many bytes."""
        return self._native.write_back(start, _END if end is None else end)

    def close(self) -> None:
        """Closes the file. Calls of other threads that are under way go on to their end."""
        if not self.closed:
            try:
                super().close()
            finally:
                self._native.close()

    def _check_open(self) -> None:
        if self.closed:
            raise ValueError("I/O operation on closed file")

    def _unsupported(self, what: str) -> Exception:
        self._check_open()
        return io.UnsupportedOperation(f"the file is not open for {what}")


class _Synced:
    """What a layer passes on to the raw file, after its own bytes."""

    if TYPE_CHECKING:

        def flush(self) -> None: ...
        def _file(self) -> File: ...

    def sync(self, *, data_only: bool = False) -> None:
        """Writes what is buffered, and makes the file durable as `File.sync` does."""
        self.flush()
        self._file().sync(data_only=data_only)

    def sync_range(self, start: int, end: int | None = None, *, data_only: bool = False) -> None:
        """Writes what is buffered, and makes a range of bytes durable as `File.sync_range` does."""
        self.flush()
        self._file().sync_range(start, end, data_only=data_only)

    def sync_async(self, start: int = 0, end: int | None = None, *, data_only: bool = False) -> SyncTicket:
        """Writes what is buffered, and starts a sync as `File.sync_async` does."""
        self.flush()
        return self._file().sync_async(start, end, data_only=data_only)


class BufferedReader(_Synced, io.BufferedReader):
    """A file opened for reading."""

    def _file(self) -> File:
        return _raw(self)


class BufferedWriter(_Synced, io.BufferedWriter):
    """A file opened for writing or appending."""

    def _file(self) -> File:
        return _raw(self)


class BufferedRandom(_Synced, io.BufferedRandom):
    """A file opened for both."""

    def _file(self) -> File:
        return _raw(self)


class TextFile(_Synced, io.TextIOWrapper):
    """A file of text.

    >>> import syncline
    >>> volume = syncline.Volume.in_memory(64 << 20)
    >>> with volume.open("/log", "a", encoding="utf-8") as file:
    ...     _ = file.write("one line\\n")
    ...     file.sync()
    >>> volume.close()
    """

    def _file(self) -> File:
        return _raw(self.buffer)


def _raw(buffered: Any) -> File:
    raw: File = buffered.raw
    return raw


LAYERS = Layers(BufferedReader, BufferedWriter, BufferedRandom, TextFile)
