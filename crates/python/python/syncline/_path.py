"""Paths in a volume, in the manner of `pathlib`."""

from __future__ import annotations

import fnmatch
import os
import stat
from collections.abc import Iterator
from pathlib import PurePosixPath
from typing import TYPE_CHECKING, Any, Literal, overload

from ._stat import stat_result

if TYPE_CHECKING:
    from typing_extensions import Buffer

    from _typeshed import (
        OpenBinaryMode,
        OpenBinaryModeReading,
        OpenBinaryModeUpdating,
        OpenBinaryModeWriting,
        OpenTextMode,
    )

    from ._file import BufferedRandom, BufferedReader, BufferedWriter, File, TextFile
    from ._volume import Volume

_MAGIC = frozenset("*?[")


class VolumePath:
    """A path in a volume, from its root: what ``volume / "directory" / "name"`` makes.

    It has the methods of `pathlib.Path` under their names. It is no `os.PathLike`, because the host's functions would
    look for the name on the host.

    >>> import syncline
    >>> volume = syncline.Volume.in_memory(64 << 20)
    >>> path = volume / "notes" / "today.txt"
    >>> path.parent.mkdir()
    >>> path.write_text("sync less")
    9
    >>> path.name, path.suffix, path.stat().st_size
    ('today.txt', '.txt', 9)
    >>> [str(found) for found in volume.path().glob("**/*.txt")]
    ['/notes/today.txt']
    >>> path.replace(path.with_name("yesterday.txt")).read_text()
    'sync less'
    >>> volume.close()
    """

    __slots__ = ("_pure", "_volume")

    def __init__(self, volume: Volume, *names: str | PurePosixPath) -> None:
        pure = PurePosixPath("/", *names)
        if "\0" in str(pure):
            raise ValueError("embedded null byte")
        # A path that begins with two slashes is another one to POSIX, and the same one here.
        self._pure = PurePosixPath("/", *pure.parts[1:])
        self._volume = volume

    def _with(self, pure: PurePosixPath) -> VolumePath:
        return VolumePath(self._volume, pure)

    @property
    def volume(self) -> Volume:
        """The volume."""
        return self._volume

    def __str__(self) -> str:
        return str(self._pure)

    def __repr__(self) -> str:
        return f"VolumePath({str(self._pure)!r})"

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, VolumePath):
            return NotImplemented
        return self._volume is other._volume and self._pure == other._pure

    def __hash__(self) -> int:
        return hash((id(self._volume), self._pure))

    def __lt__(self, other: VolumePath) -> bool:
        if not isinstance(other, VolumePath):
            return NotImplemented
        return self._pure < other._pure

    def __truediv__(self, name: str | PurePosixPath) -> VolumePath:
        return VolumePath(self._volume, self._pure, name)

    def joinpath(self, *names: str | PurePosixPath) -> VolumePath:
        """The path with names added."""
        return VolumePath(self._volume, self._pure, *names)

    @property
    def name(self) -> str:
        """The last name; empty for the root."""
        return self._pure.name

    @property
    def stem(self) -> str:
        """The last name without its suffix."""
        return self._pure.stem

    @property
    def suffix(self) -> str:
        """The last name's suffix with its dot."""
        return self._pure.suffix

    @property
    def suffixes(self) -> list[str]:
        """All suffixes of the last name."""
        return self._pure.suffixes

    @property
    def parts(self) -> tuple[str, ...]:
        """The root and all names."""
        return self._pure.parts

    @property
    def parent(self) -> VolumePath:
        """The path without its last name."""
        return self._with(self._pure.parent)

    @property
    def parents(self) -> tuple[VolumePath, ...]:
        """All paths above this one, the nearest first."""
        return tuple(self._with(parent) for parent in self._pure.parents)

    def with_name(self, name: str) -> VolumePath:
        """The path with another last name."""
        return self._with(self._pure.with_name(name))

    def with_stem(self, stem: str) -> VolumePath:
        """The path with another stem."""
        return self._with(self._pure.with_stem(stem))

    def with_suffix(self, suffix: str) -> VolumePath:
        """The path with another suffix."""
        return self._with(self._pure.with_suffix(suffix))

    def as_posix(self) -> str:
        """The path as text."""
        return str(self._pure)

    def is_absolute(self) -> bool:
        """Always."""
        return True

    def relative_to(self, other: VolumePath | str) -> PurePosixPath:
        """The names behind `other`. Raises `ValueError` if the path does not begin with it."""
        return self._pure.relative_to(str(other))

    def is_relative_to(self, other: VolumePath | str) -> bool:
        """Whether the path begins with `other`."""
        return self._pure.is_relative_to(str(other))

    def match(self, pattern: str) -> bool:
        """Whether the path matches, as `pathlib` has it."""
        return self._pure.match(pattern)

    # What asks or changes the volume.

    @overload
    def open(
        self,
        mode: OpenTextMode = "r",
        buffering: int = -1,
        encoding: str | None = None,
        errors: str | None = None,
        newline: str | None = None,
    ) -> TextFile: ...
    @overload
    def open(self, mode: OpenBinaryMode, buffering: Literal[0]) -> File: ...
    @overload
    def open(self, mode: OpenBinaryModeUpdating, buffering: Literal[-1, 1] = -1) -> BufferedRandom: ...
    @overload
    def open(self, mode: OpenBinaryModeWriting, buffering: Literal[-1, 1] = -1) -> BufferedWriter: ...
    @overload
    def open(self, mode: OpenBinaryModeReading, buffering: Literal[-1, 1] = -1) -> BufferedReader: ...
    @overload
    def open(
        self,
        mode: str,
        buffering: int = -1,
        encoding: str | None = None,
        errors: str | None = None,
        newline: str | None = None,
    ) -> Any: ...

    def open(
        self,
        mode: str = "r",
        buffering: int = -1,
        encoding: str | None = None,
        errors: str | None = None,
        newline: str | None = None,
    ) -> Any:
        """Opens the file: see `Volume.open`."""
        return self._volume.open(self, mode, buffering, encoding, errors, newline)

    def read_bytes(self) -> bytes:
        """The whole content."""
        return self._volume._native.read(str(self._pure))

    def read_text(self, encoding: str | None = None, errors: str | None = None) -> str:
        """The whole content as text."""
        with self.open("r", encoding=encoding, errors=errors) as file:
            return file.read()

    def write_bytes(self, data: Buffer) -> int:
        """Makes the file or replaces its content; returns how many bytes. Not atomic: see `Volume.transaction`."""
        return self._volume._native.write(str(self._pure), data)

    def write_text(
        self, data: str, encoding: str | None = None, errors: str | None = None, newline: str | None = None
    ) -> int:
        """Makes the file or replaces its content; returns how many characters."""
        if not isinstance(data, str):
            raise TypeError(f"data must be str, not {type(data).__name__}")
        with self.open("w", encoding=encoding, errors=errors, newline=newline) as file:
            return file.write(data)

    def stat(self, *, follow_symlinks: bool = True) -> os.stat_result:
        """Attributes, as `os.stat` tells them."""
        return stat_result(self._volume._native.stat(str(self._pure), follow_symlinks))

    def lstat(self) -> os.stat_result:
        """Attributes of a symbolic link itself."""
        return self.stat(follow_symlinks=False)

    def exists(self, *, follow_symlinks: bool = True) -> bool:
        """Whether the path leads to something."""
        return self._mode(follow_symlinks) is not None

    def is_file(self) -> bool:
        """Whether the path leads to a regular file."""
        return stat.S_ISREG(self._mode(True) or 0)

    def is_dir(self) -> bool:
        """Whether the path leads to a directory."""
        return stat.S_ISDIR(self._mode(True) or 0)

    def is_symlink(self) -> bool:
        """Whether the path names a symbolic link."""
        return stat.S_ISLNK(self._mode(False) or 0)

    def _mode(self, follow: bool) -> int | None:
        try:
            return self._volume._native.stat(str(self._pure), follow)[0]
        except (FileNotFoundError, NotADirectoryError):
            return None

    def samefile(self, other: VolumePath) -> bool:
        """Whether both paths lead to the same file."""
        return self._volume is other._volume and self.stat().st_ino == other.stat().st_ino

    def iterdir(self) -> Iterator[VolumePath]:
        """The paths in this directory, in no particular order."""
        for name, _ in self._volume._native.read_dir(str(self._pure)):
            yield self / name

    def glob(self, pattern: str) -> Iterator[VolumePath]:
        """Paths below this one that match: ``*``, ``?`` and ``[...]`` within a name, ``**`` for any directories."""
        wanted = PurePosixPath(pattern)
        if wanted.is_absolute():
            raise NotImplementedError("Non-relative patterns are unsupported")
        if not wanted.parts:
            raise ValueError(f"Unacceptable pattern: {pattern!r}")
        seen: set[PurePosixPath] = set()
        for found in self._select(wanted.parts):
            if found._pure not in seen:
                seen.add(found._pure)
                yield found

    def rglob(self, pattern: str) -> Iterator[VolumePath]:
        """As `glob` with ``**/`` in front of the pattern."""
        return self.glob("**/" + pattern)

    def _select(self, names: tuple[str, ...]) -> Iterator[VolumePath]:
        if not names:
            yield self
            return
        first, rest = names[0], names[1:]
        if first == "**":
            yield from self._select(rest)
            for name, kind in self._entries():
                if stat.S_ISDIR(kind):
                    yield from (self / name)._select(names)
                elif not rest:
                    yield self / name
        elif _MAGIC.isdisjoint(first):
            if (self / first).exists(follow_symlinks=False):
                yield from (self / first)._select(rest)
        else:
            for name, _ in self._entries():
                if fnmatch.fnmatchcase(name, first):
                    yield from (self / name)._select(rest)

    def _entries(self) -> list[tuple[str, int]]:
        try:
            return self._volume._native.read_dir(str(self._pure))
        except (FileNotFoundError, NotADirectoryError):
            return []

    def mkdir(self, mode: int = 0o777, parents: bool = False, exist_ok: bool = False) -> None:
        """Makes the directory; with `parents` those above it too."""
        try:
            self._volume._native.mkdir(str(self._pure))
        except FileNotFoundError:
            if not parents or self.parent == self:
                raise
            self.parent.mkdir(parents=True, exist_ok=True)
            self.mkdir(mode, parents=False, exist_ok=exist_ok)
            return
        except FileExistsError:
            if not exist_ok or not self.is_dir():
                raise
            return
        if mode != 0o777:
            self.chmod(mode & ~0o022)

    def rmdir(self) -> None:
        """Removes the empty directory."""
        self._volume._native.rmdir(str(self._pure))

    def rmtree(self) -> None:
        """Removes the directory and everything in it. Symbolic links are removed, not followed."""
        self._volume._native.rmtree(str(self._pure))

    def unlink(self, missing_ok: bool = False) -> None:
        """Removes the name of a file."""
        try:
            self._volume._native.unlink(str(self._pure))
        except FileNotFoundError:
            if not missing_ok:
                raise

    def rename(self, target: VolumePath | str) -> VolumePath:
        """Renames atomically, replacing what has the new name; returns the new path."""
        there = self._other(target)
        self._volume._native.rename(str(self._pure), str(there), False, False)
        return there

    def replace(self, target: VolumePath | str) -> VolumePath:
        """As `rename`. A crash shows the old file or the new one, whole."""
        return self.rename(target)

    def exchange(self, other: VolumePath | str) -> None:
        """Swaps two names atomically."""
        self._volume._native.rename(str(self._pure), str(self._other(other)), False, True)

    def _other(self, target: VolumePath | str) -> VolumePath:
        if isinstance(target, str):
            return self._volume.path(target)
        return self._volume.path(self._volume._name(target))

    def touch(self, mode: int = 0o666, exist_ok: bool = True) -> None:
        """Makes the file if there is none, or sets its times to now."""
        try:
            self._volume.open(self, "xb", 0, permissions=mode).close()
        except FileExistsError:
            if not exist_ok:
                raise
            self.utime()

    def symlink_to(self, target: VolumePath | str) -> None:
        """Makes this path a symbolic link to `target`."""
        self._volume._native.symlink(str(target), str(self._pure))

    def hardlink_to(self, target: VolumePath | str) -> None:
        """Makes this path another name of `target`."""
        self._volume._native.link(str(self._other(target)), str(self._pure))

    def readlink(self) -> PurePosixPath:
        """What the symbolic link says."""
        return PurePosixPath(self._volume._native.readlink(str(self._pure)))

    def resolve(self) -> VolumePath:
        """The path without symbolic links and ``..``."""
        return self._volume.path(self._volume._native.resolve(str(self._pure)))

    def chmod(self, mode: int) -> None:
        """Sets the permission bits."""
        self._volume._native.chmod(str(self._pure), mode)

    def chown(self, uid: int | None = None, gid: int | None = None) -> None:
        """Sets owner and group."""
        self._volume._native.chown(str(self._pure), uid, gid)

    def utime(self, *, ns: tuple[int, int] | None = None) -> None:
        """Sets the times of access and modification, in nanoseconds since 1970, or to now."""
        self._volume._native.utime(str(self._pure), ns)

    def getxattr(self, name: str) -> bytes | None:
        """An extended attribute, or `None`."""
        return self._volume._native.getxattr(str(self._pure), name)

    def setxattr(self, name: str, value: Buffer) -> None:
        """Sets an extended attribute, for instance ``user.origin``."""
        self._volume._native.setxattr(str(self._pure), name, value)

    def removexattr(self, name: str) -> None:
        """Removes an extended attribute."""
        self._volume._native.removexattr(str(self._pure), name)

    def listxattr(self) -> list[str]:
        """Names of all extended attributes."""
        return self._volume._native.listxattr(str(self._pure))
