"""Volumes."""

from __future__ import annotations

import atexit
import contextlib
import errno
import itertools
import operator
import os
import warnings
import weakref
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from types import TracebackType
from typing import TYPE_CHECKING, Any, Literal, NoReturn, SupportsIndex, TypeVar, Union, overload

from . import _modes, _native
from ._file import LAYERS, BufferedRandom, BufferedReader, BufferedWriter, File, TextFile
from ._image import Image, known_as
from ._path import VolumePath
from ._snapshot import Change, Head, Snapshot, told, told_head
from ._transaction import Transaction

if TYPE_CHECKING:
    from _typeshed import (
        OpenBinaryMode,
        OpenBinaryModeReading,
        OpenBinaryModeUpdating,
        OpenBinaryModeWriting,
        OpenTextMode,
    )

    from typing_extensions import TypedDict, Unpack

    OpenFile = Union[File, BufferedReader, BufferedWriter, BufferedRandom, TextFile]

    class _How(TypedDict, total=False):
        """What `Volume.open` takes beyond the builtin's arguments."""

        permissions: int
        write_back_every: int

_T = TypeVar("_T")

Name = Union[str, bytes, "os.PathLike[str]", "os.PathLike[bytes]", VolumePath]
"""What names a file in a volume: from the root, with or without a leading slash."""

AccessTimes = Literal["never", "relative", "always"]


@dataclass(frozen=True)
class Latency:
    """Latencies in microseconds; those of syncs that were made through one `Volume`."""

    count: int
    mean_us: float
    p50_us: float
    p99_us: float
    max_us: float


@dataclass(frozen=True)
class VolumeStats:
    """What a volume has done since it was opened, and how full it is."""

    size_bytes: int
    free_bytes: int
    available_bytes: int
    device_reads: int
    device_read_bytes: int
    device_writes: int
    device_written_bytes: int
    device_flushes: int
    records: int
    batches: int
    checkpoints: int
    journal_bytes: int
    journal_bytes_max: int
    pages_cached: int
    pages_dirty: int
    page_hits: int
    page_misses: int
    memory_bytes_max: int
    sync: Latency


class Volume:
    """An open volume in an image file or on a block device. One process has it at a time.

    `Volume(image)` opens one and recovers it if it was not closed; `Volume.create` makes one; `Volume.in_memory` makes
    one that lives as long as the process. Threads may share it. Leaving a ``with`` block closes it.

    >>> import syncline
    >>> with syncline.Volume.create(tmp / "data.img", 64 << 20, label="notes") as volume:
    ...     (volume / "notes").mkdir()
    ...     with volume.open("/notes/today", "w") as file:
    ...         _ = file.write("sync less, keep more")
    ...         file.sync()
    >>> with syncline.Volume(tmp / "data.img", read_only=True) as volume:
    ...     [path.name for path in (volume / "notes").iterdir()]
    ['today']

    Closing writes everything that was written and not synced. A volume that is not closed loses nothing that was
    synced. What is left open at the end of the program is closed then.

    A volume belongs to the process that opened it. In a forked child every call fails with ``errno.ESTALE`` and a
    sentence; start workers before the volume is opened, or with multiprocessing's ``spawn``.
    """

    def __init__(
        self,
        image: Image,
        *,
        read_only: bool = False,
        commit_interval: float | None = None,
        memory_bytes_max: int | None = None,
        access_times: AccessTimes | None = None,
        wait: float | None = None,
        head: str | None = None,
    ) -> None:
        """Opens a volume.

        :param read_only: writes nothing, not even recovery
        :param commit_interval: seconds that un-synced data may stay unwritten; 1
        :param memory_bytes_max: bound on memory for cached data and metadata; 256 MiB
        :param access_times: when reading updates them: "never", "relative" (the default) or "always"
        :param wait: seconds to wait for another process to leave the volume; 0
        :param head: the head that it shows (`heads`); by default the volume's own
        """
        options = {
            "read_only": read_only,
            "commit_interval": commit_interval,
            "memory_bytes_max": memory_bytes_max,
            "access_times": access_times,
            "wait": wait,
            "head": head,
        }
        name = _image(image)
        try:
            native = _native.Volume.open(name, options)
        except OSError as error:
            if error.errno == errno.EBUSY and open_volume_of(name) is not None:
                raise OSError(errno.EBUSY, "this process has it open already; share that Volume", name) from None
            raise
        self._begin(native, name, read_only)

    @classmethod
    def create(
        cls,
        image: Image,
        size: int | None = None,
        *,
        label: str = "",
        journal_size: int | None = None,
        format: int | None = None,
        commit_interval: float | None = None,
        memory_bytes_max: int | None = None,
        access_times: AccessTimes | None = None,
    ) -> Volume:
        """Makes an empty volume and opens it. With `size` in bytes, `image` becomes an image file of that size;
        otherwise it is an existing image file or block device, which is used as it is.

        :param label: name of the volume, at most 64 bytes of UTF-8
        :param journal_size: bytes; by default 1/64 of the volume, 16 MiB to 1 GiB, less on small volumes
        :param format: version of the format: 2, or 1 for a volume that has no snapshots before an upgrade

        Raises `FileExistsError` if there is a volume or another filesystem on it already, or if it is a file that holds
        anything but zeros in its first 128 KiB. An image that was made for it is gone again if no volume comes of it.
        """
        options = {
            "read_only": False,
            "commit_interval": commit_interval,
            "memory_bytes_max": memory_bytes_max,
            "access_times": access_times,
            "wait": None,
            "head": None,
        }
        name = _image(image)
        volume = cls.__new__(cls)
        made = {"label": label, "journal_size": _count(journal_size), "format": _count(format)}
        volume._begin(_native.Volume.create(name, _count(size), made, options), name, False)
        return volume

    @classmethod
    def in_memory(cls, size: int, *, format: int | None = None) -> Volume:
        """Makes a volume of `size` bytes in memory; it takes only what is written to it. `format` is as in `create`."""
        volume = cls.__new__(cls)
        made = {"label": "", "journal_size": None, "format": _count(format)}
        volume._begin(_native.Volume.in_memory(_checked(size), made), None, False)
        return volume

    def _begin(
        self, native: _native.Volume, image: str | None, read_only: bool, of: tuple[Volume, str] | None = None
    ) -> None:
        self._native = native
        # The volume of which this is a snapshot or a head stays open as long.
        self._of = of
        self._views: weakref.WeakSet[Volume] = weakref.WeakSet()
        self._files: weakref.WeakSet[Any] = weakref.WeakSet()
        self._transactions: weakref.WeakSet[Transaction] = weakref.WeakSet()
        # What SQLite calls one in memory.
        self._number = next(_numbers)
        self.image = None if image is None else known_as(image)
        self.read_only = read_only
        _open_volumes.add(self)

    def __repr__(self) -> str:
        state = "closed " if self.closed else ""
        what = self.image or "in memory"
        if self._of is not None:
            what = f"{self._of[0].image or 'in memory'}, {self._of[1]}"
        return f"<{state}syncline.Volume {what} at {id(self):#x}>"

    def __reduce_ex__(self, protocol: object) -> NoReturn:
        # A copy would be the same volume with files and transactions of its own.
        raise TypeError(f"cannot copy or pickle {type(self).__name__!r} object")

    def __enter__(self) -> Volume:
        if self.closed:
            raise ValueError("I/O operation on closed volume")
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __del__(self) -> None:
        native = getattr(self, "_native", None)
        if native is not None and not native.closed:
            try:
                warnings.warn(f"unclosed {self!r}", ResourceWarning, stacklevel=2, source=self)
            finally:
                # Files that are open go on; the last one closes the volume.
                native.release()

    @property
    def closed(self) -> bool:
        """Whether the volume was closed."""
        return self._native.closed

    def close(self) -> None:
        """Closes the volume's files and what `at` and `head` have opened of it, ends its transactions, writes everything
        and marks the volume clean.

        It waits for the calls of other threads. Raises `OSError` with ``errno.EBUSY`` while SQLite has connections to
        it or to a snapshot of it. A second call does nothing.
        """
        self._end(self._native.end_close)

    def _end(self, end: Callable[[], bool]) -> None:
        # A snapshot that SQLite has connections to refuses, before anything is closed.
        for view in _listed(self._views):
            view.close()
        if not self._native.begin_close():
            return
        failure: BaseException | None = None
        # Another thread may have been about to open one: all are closed until nothing is left.
        while True:
            for transaction in _listed(self._transactions):
                transaction.abort()
            for file in _listed(self._files):
                try:
                    file.close()
                except (OSError, ValueError) as error:
                    failure = failure or error
            for view in _listed(self._views):
                # One that SQLite has opened meanwhile is waited for.
                with contextlib.suppress(OSError):
                    view.close()
            if end():
                break
        if failure is not None:
            raise failure

    def __truediv__(self, name: str) -> VolumePath:
        return VolumePath(self, "/", name)

    def path(self, *names: str) -> VolumePath:
        """A path in the volume; the root, without arguments.

        >>> import syncline
        >>> volume = syncline.Volume.in_memory(64 << 20)
        >>> volume.path("a", "b") == volume / "a" / "b"
        True
        >>> volume.close()
        """
        return VolumePath(self, "/", *names)

    @overload
    def open(
        self,
        path: Name,
        mode: OpenTextMode = "r",
        buffering: int = -1,
        encoding: str | None = None,
        errors: str | None = None,
        newline: str | None = None,
        **how: Unpack[_How],
    ) -> TextFile: ...
    @overload
    def open(self, path: Name, mode: OpenBinaryMode, buffering: Literal[0], **how: Unpack[_How]) -> File: ...
    @overload
    def open(
        self, path: Name, mode: OpenBinaryModeUpdating, buffering: Literal[-1, 1] = -1, **how: Unpack[_How]
    ) -> BufferedRandom: ...
    @overload
    def open(
        self, path: Name, mode: OpenBinaryModeWriting, buffering: Literal[-1, 1] = -1, **how: Unpack[_How]
    ) -> BufferedWriter: ...
    @overload
    def open(
        self, path: Name, mode: OpenBinaryModeReading, buffering: Literal[-1, 1] = -1, **how: Unpack[_How]
    ) -> BufferedReader: ...
    @overload
    def open(
        self, path: Name, mode: str, buffering: int = -1, encoding: str | None = None, errors: str | None = None,
        newline: str | None = None, **how: Unpack[_How],
    ) -> Any: ...

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
        write_back_every: int = 0,
    ) -> Any:
        """Opens a file as the builtin `open` does: the same modes, buffering and text layers, and the same errors.

        What it returns has `sync`, `sync_range` and `sync_async` in addition. There is no descriptor: ``fileno`` raises
        `io.UnsupportedOperation`.

        :param permissions: of a file that is made, before the umask of 022
        :param write_back_every: bytes after which what was written is sent to the device already; 0 for never
        """
        how = _modes.parse(mode)
        _modes.check(how, buffering, encoding, errors, newline)
        name = self._name(path)
        native = self._native.open_file(
            name,
            {
                "read": how.readable,
                "write": how.writable,
                "append": how.letter == "a",
                "truncate": how.letter == "w",
                "create": how.letter in "wa",
                "create_new": how.letter == "x",
                "follow": True,
                "permissions": permissions,
                "write_back_every": write_back_every,
            },
        )
        raw = File(native, name, how.name, how.readable, how.writable)
        if how.letter == "a":
            raw.seek(0, os.SEEK_END)
        file = _modes.layered(raw, how, buffering, encoding, errors, newline, LAYERS)
        self._files.add(file)
        return file

    def transaction(self) -> Transaction:
        """Begins a transaction: changes of any number of files that are seen together or not at all, also after a
        crash, and are durable when the ``with`` block ends. An exception in the block leaves everything as it was.

        >>> import syncline
        >>> volume = syncline.Volume.in_memory(64 << 20)
        >>> with volume.transaction() as t:
        ...     _ = t.write_text("/hosts", "new hosts")
        ...     _ = t.write_text("/users", "new users")
        >>> sorted(path.name for path in volume.path().iterdir())
        ['hosts', 'users']
        >>> volume.close()
        """
        begun = Transaction(self._native.begin(), self._name)
        self._transactions.add(begun)
        return begun

    def snapshot(self, name: str, *, committed: bool = False) -> Snapshot:
        """Makes a snapshot: the whole volume as it is now, for good. It is durable when this returns. Data of all
        writes that have returned is in it; what a buffered file has not written yet is not.

        :param name: 1 to 255 bytes, without ``/``
        :param committed: of data that was not synced only what the background has committed already. This is one write
            and one flush, whatever is dirty

        Raises `OSError`: `FileExistsError`, ``errno.EOPNOTSUPP`` on a volume of version 1 of the format, and
        ``errno.ENOSPC`` if too little would be left for the volume to go on.

        >>> import syncline
        >>> volume = syncline.Volume.in_memory(64 << 20)
        >>> _ = (volume / "notes").write_text("first")
        >>> volume.snapshot("before").name
        'before'
        >>> _ = (volume / "notes").write_text("second")
        >>> with volume.at("before") as before:
        ...     (before / "notes").read_text()
        'first'
        >>> volume.close()
        """
        return told(self._native.snapshot(name, committed))

    def snapshots(self) -> list[Snapshot]:
        """The snapshots, in the order in which they were made; none on a volume of version 1 of the format."""
        return [told(snapshot) for snapshot in self._native.snapshots()]

    def at(self, name: str) -> Volume:
        """A snapshot as a volume of its own that is read only: open files, paths, fsspec, SQLite. It is closed by
        itself, or with the volume that it is of. While it is open its space does not come back, even if it is deleted.

        Raises `FileNotFoundError`.
        """
        view = Volume.__new__(Volume)
        view._begin(self._native.at(name), None, True, (self, f"snapshot {name!r}"))
        self._views.add(view)
        return view

    def delete_snapshot(self, name: str) -> None:
        """Deletes a snapshot, for good when this returns. What no other has comes back in the background.

        Raises `FileNotFoundError`, and `OSError` with ``errno.EBUSY`` for one that is held.
        """
        self._native.delete_snapshot(name)

    def rename_snapshot(self, name: str, to: str) -> None:
        """Gives a snapshot another name, for good when this returns.

        Raises `FileNotFoundError` and `FileExistsError`.
        """
        self._native.rename_snapshot(name, to)

    def hold_snapshot(self, name: str) -> None:
        """Holds a snapshot, for good when this returns: to delete it is refused until it is released, also when the
        volume has been opened again. A second call does nothing.

        Raises `FileNotFoundError`.

        >>> import syncline
        >>> volume = syncline.Volume.in_memory(64 << 20)
        >>> _ = volume.snapshot("before")
        >>> volume.hold_snapshot("before")
        >>> [snapshot.held for snapshot in volume.snapshots()]
        [True]
        >>> try:
        ...     volume.delete_snapshot("before")
        ... except OSError as error:
        ...     print(error.strerror)
        the snapshot "before" is held; release it before it is deleted ("syncline snapshot release")
        >>> volume.release_snapshot("before")
        >>> volume.delete_snapshot("before")
        >>> volume.close()
        """
        self._native.hold_snapshot(name)

    def release_snapshot(self, name: str) -> None:
        """Lets a snapshot be deleted again, for good when this returns.

        Raises `FileNotFoundError`.
        """
        self._native.release_snapshot(name)

    def diff(self, older: str, newer: str | None = None, *, content: bool = False) -> list[Change]:
        """What differs between a snapshot and a later one, or, without a later one, the volume as it is now; sorted by
        path. What both have is not read, so it takes as long as the changes are many.

        :param content: compare checksums: what was written with the content that it had does not count

        Raises `FileNotFoundError`; without a later one also what `snapshot` raises.

        >>> import syncline
        >>> volume = syncline.Volume.in_memory(64 << 20)
        >>> _ = (volume / "notes").write_text("first")
        >>> _ = volume.snapshot("before")
        >>> _ = (volume / "notes").rename("/diary")
        >>> volume.diff("before")
        [Change(kind='renamed', path='diary', old_path='notes', content=False, attributes=False)]
        >>> volume.close()
        """
        return [Change(*change) for change in self._native.diff(older, newer, content)]

    def snapshot_usage(self, names: Iterable[str]) -> int:
        """Bytes that would become free if these snapshots were deleted together and nobody read them. Exact, but for
        the few blocks of the tables in which snapshots are named. It reads the nodes in which they differ from what
        stays, and no data.

        Raises `FileNotFoundError`, and `OSError` with ``errno.EROFS`` on a volume that is open read-only and was not
        closed.

        >>> import syncline
        >>> volume = syncline.Volume.in_memory(64 << 20)
        >>> _ = (volume / "notes").write_bytes(bytes(range(256)) * 4096)
        >>> _, _ = volume.snapshot("one"), volume.snapshot("two")
        >>> (volume / "notes").unlink()
        >>> volume.snapshot_usage(["one"]) < 1 << 20 <= volume.snapshot_usage(["one", "two"])
        True
        >>> volume.close()
        """
        return self._native.snapshot_usage([names] if isinstance(names, str) else list(names))

    def clone_snapshot(self, snapshot: str, head: str) -> Head:
        """Makes a head that begins as the snapshot is: a writable branch, durable when this returns, by one write and
        one flush.

        Raises `FileNotFoundError`, `FileExistsError`, and what `snapshot` raises.

        >>> import syncline
        >>> volume = syncline.Volume.in_memory(64 << 20)
        >>> _ = (volume / "notes").write_text("first")
        >>> _ = volume.snapshot("before")
        >>> volume.clone_snapshot("before", "attempt").parent
        'before'
        >>> with volume.head("attempt") as attempt:
        ...     _ = (attempt / "notes").write_text("an attempt")
        ...     (volume / "notes").read_text()
        'first'
        >>> volume.delete_head("attempt")
        >>> volume.close()
        """
        return told_head(self._native.clone_snapshot(snapshot, head))

    def heads(self) -> list[Head]:
        """The heads, in the order in which they were made; none on a volume of version 1 of the format."""
        return [told_head(head) for head in self._native.heads()]

    def head(self, name: str) -> Volume:
        """A head as a volume of its own beside this one, with syncs of its own. It is closed by itself, or with the volume
        that it is of.

        Raises `FileNotFoundError`, and `OSError` with ``errno.EBUSY`` for the head that this volume shows.
        """
        view = Volume.__new__(Volume)
        view._begin(self._native.head(name), None, self.read_only, (self, f"head {name!r}"))
        self._views.add(view)
        return view

    def delete_head(self, name: str) -> None:
        """Deletes a head that nobody has open, for good when this returns, with what was not synced in it.

        Raises `FileNotFoundError`, and `OSError` with ``errno.EBUSY`` if it is open or is the volume's own.
        """
        self._native.delete_head(name)

    def rollback(self, to: str, *, keep: str | None = None) -> None:
        """Takes what the volume shows back to a snapshot, and closes the volume as `close` does. After a crash it is the
        old state or the new one; once this has returned it is the new one. Snapshots and other heads stay as they are.

        :param keep: what the volume shows now stays as a snapshot of this name; otherwise it is gone

        Raises `OSError`: `FileNotFoundError`, `FileExistsError`, ``errno.ENOSPC``. The volume is closed then as well, and
        is as it was. Raises `ValueError` for a volume from `head` or `at`, which stays open: open the head by
        ``Volume(image, head=name)``.

        >>> import syncline
        >>> with syncline.Volume.create(tmp / "back.img", 64 << 20) as volume:
        ...     _ = (volume / "notes").write_text("first")
        ...     _ = volume.snapshot("before")
        ...     (volume / "notes").unlink()
        ...     volume.rollback("before", keep="after")
        >>> with syncline.Volume(tmp / "back.img") as volume:
        ...     (volume / "notes").read_text(), [snapshot.name for snapshot in volume.snapshots()]
        ('first', ['before', 'after'])
        """
        if self._of is not None:
            raise ValueError(f"{self._of[1]} was opened beside the volume; open the image with head= to take it back")
        if self.closed:
            raise ValueError("I/O operation on closed volume")
        self._end(lambda: self._native.end_by_rollback(to, keep))

    def schedule(self) -> str | None:
        """The schedule of snapshots, if the volume has one."""
        return self._native.schedule()

    def set_schedule(self, schedule: str | None) -> None:
        """Gives the volume a schedule of snapshots, or takes it away, for good when this returns. The volume's thread
        follows it while it is open: it makes one each hour (or day, week, month) in which something has changed, and
        deletes what no class keeps any more. What is held or renamed stays.

        :param schedule: words, of which one class at least has to be there

        Raises `OSError` with ``errno.EINVAL`` for what is no schedule.

        >>> import syncline
        >>> volume = syncline.Volume.in_memory(64 << 20)
        >>> volume.set_schedule("hourly=24 daily=7 keep-free=10%")
        >>> volume.schedule()
        'hourly=24 daily=7 keep-free=10% prefix=auto'
        >>> volume.set_schedule(None)
        >>> volume.close()
        """
        self._native.set_schedule(schedule)

    def reclaim(self) -> None:
        """Waits until all space of deleted snapshots that nobody reads is free."""
        self._native.reclaim()

    def sync(self) -> None:
        """Makes everything on the volume durable, un-synced data of all files included."""
        self._native.sync()

    def sync_files(self, files: Iterable[OpenFile]) -> None:
        """Makes several open files durable together, with one group commit."""
        natives = []
        for file in files:
            if not isinstance(file, (File, BufferedReader, BufferedWriter, BufferedRandom, TextFile)):
                raise TypeError(f"an open file of the volume is needed, not {type(file).__name__!r}")
            file.flush()
            natives.append((file if isinstance(file, File) else file._file())._native)
        self._native.sync_files(natives)

    def checkpoint(self) -> None:
        """Writes a checkpoint, so that the next open has little to recover. Not needed for durability."""
        self._native.checkpoint()

    def trim(self) -> int:
        """Tells the device what is free; returns how many bytes. An image file gets holes there."""
        return self._native.trim()

    def stats(self) -> VolumeStats:
        """What the volume has done and how full it is.

        >>> import syncline
        >>> volume = syncline.Volume.in_memory(64 << 20)
        >>> with volume.open("/file", "wb", buffering=0) as file:
        ...     _ = file.write(bytes(4096))
        ...     before = volume.stats()
        ...     file.sync()
        ...     after = volume.stats()
        >>> after.device_writes - before.device_writes, after.device_flushes - before.device_flushes
        (1, 1)
        >>> volume.close()
        """
        figures = self._native.stats()
        return VolumeStats(**{**figures, "sync": Latency(**figures["sync"])})

    def _name(self, path: Name) -> str:
        if isinstance(path, VolumePath):
            if path.volume is not self:
                raise ValueError(f"{path!r} is a path of another volume")
            return str(path)
        name = os.fsdecode(path)
        if "\0" in name:
            raise ValueError("embedded null byte")
        return name


def _image(image: Image) -> str:
    name = os.fsdecode(image)
    if "\0" in name:
        raise ValueError("embedded null byte")
    return name


def _count(number: SupportsIndex | None) -> int | None:
    """A whole number that is not negative, where one is given."""
    return None if number is None else _checked(number)


def _checked(number: SupportsIndex) -> int:
    count = operator.index(number)
    if count < 0:
        raise ValueError(f"{count} is negative")
    return count


_open_volumes: weakref.WeakSet[Volume] = weakref.WeakSet()
_numbers = itertools.count(1)


def _listed(things: weakref.WeakSet[_T]) -> list[_T]:
    """What is in a set that other threads add to. A lock could be left locked in a forked child."""
    while True:
        try:
            return list(things)
        except RuntimeError:
            continue


def open_volume_of(image: str) -> Volume | None:
    """The volume of an image that this process has open."""
    wanted = known_as(image)
    for volume in _listed(_open_volumes):
        if volume.image == wanted and not volume.closed:
            return volume
    return None


@atexit.register
def _close_all() -> None:
    for volume in _listed(_open_volumes):
        # A forked child is refused, and SQLite may have connections: what was synced is safe in both.
        with contextlib.suppress(OSError):
            volume.close()
