"""Syncline as a filesystem of fsspec: ``syncline://image.img/path``.

The path of the image ends where it leads to something that is no directory: ``syncline://data/disk.img/a/b`` is the
file ``/a/b`` in the volume of ``data/disk.img``, and ``syncline:///srv/disk.img/a`` begins at the host's root.

>>> import fsspec, syncline
>>> syncline.Volume.create(tmp / "disk.img", 64 << 20).close()
>>> with fsspec.open(f"syncline://{tmp}/disk.img/hello.txt", "w") as file:
...     _ = file.write("hello")
>>> fs = fsspec.filesystem("syncline", image=str(tmp / "disk.img"))
>>> fs.cat("/hello.txt")
b'hello'
>>> fs.close()
"""

from __future__ import annotations

import datetime
import errno
import os
import stat
import threading
import uuid
from typing import Any

from fsspec.spec import AbstractFileSystem
from fsspec.transaction import Transaction as _Transaction
from fsspec.utils import tokenize

from ._image import known_as
from ._volume import Volume, open_volume_of

_SCHEME = "syncline://"
_COPY_BYTES = 4 << 20
_opening = threading.Lock()


def split(url: str) -> tuple[str | None, str]:
    """The image and the path in it; no image for what is no URL.

    Raises `FileNotFoundError` if there is no image on the way.
    """
    if not url.startswith(_SCHEME):
        return None, url
    rest = url[len(_SCHEME) :]
    end = 0
    while end < len(rest):
        end = rest.find("/", end + 1)
        if end < 0:
            end = len(rest)
        try:
            mode = os.stat(rest[:end]).st_mode
        except (FileNotFoundError, NotADirectoryError):
            break
        if not stat.S_ISDIR(mode):
            return rest[:end], rest[end:]
    raise FileNotFoundError(errno.ENOENT, "no image of a volume lies on the way", url)


class SynclineFileSystem(AbstractFileSystem):  # type: ignore[misc]
    """A volume as a filesystem of fsspec.

    :param image: the image file or block device. A volume of it that this process has open is used; otherwise it is
        opened, for reading only if it cannot be written, and stays open until `close` or the end of the program
    :param volume: an open `syncline.Volume`, instead
    :param durable: what was written is durable when its file is closed, and when ``pipe`` and ``put`` return
    :param auto_mkdir: directories on the way to a file that is written are made
    :param volume_options: what `syncline.Volume` takes when it opens an image

    A ``with fs.transaction:`` block makes all its files appear together, also after a crash.
    """

    protocol = "syncline"
    root_marker = "/"

    def __init__(
        self,
        image: str | os.PathLike[str] | None = None,
        volume: Volume | None = None,
        *,
        durable: bool = False,
        auto_mkdir: bool = True,
        volume_options: dict[str, Any] | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        if (image is None) == (volume is None):
            raise ValueError("a filesystem of Syncline is one of an image or of a volume: give one of the two")
        self.image = None if image is None else known_as(image)
        self.durable = durable
        self.auto_mkdir = auto_mkdir
        self._options = volume_options or {}
        self._volume = volume
        self._owns = False

    @property
    def volume(self) -> Volume:
        """The open volume."""
        volume = self._volume
        if volume is not None and (not volume.closed or self.image is None):
            return volume
        assert self.image is not None
        with _opening:
            volume = open_volume_of(self.image)
            self._owns = volume is None
            self._volume = volume or _opened(self.image, self._options)
            return self._volume

    def close(self) -> None:
        """Closes the volume, if this filesystem has opened it. The next use opens it again."""
        if self._owns and self._volume is not None:
            self._volume.close()
            self._volume, self._owns = None, False

    def sync(self) -> None:
        """Makes everything durable."""
        self.volume.sync()

    # Names.

    @classmethod
    def _strip_protocol(cls, path: Any) -> Any:
        if isinstance(path, list):
            return [cls._strip_protocol(one) for one in path]
        _, inside = split(os.fspath(path))
        return "/" + inside.strip("/")

    @staticmethod
    def _get_kwargs_from_urls(path: str) -> dict[str, Any]:
        image, _ = split(path)
        return {} if image is None else {"image": known_as(image)}

    def unstrip_protocol(self, name: str) -> str:
        """The URL of a path."""
        path: str = self._strip_protocol(name)
        return f"{_SCHEME}{self.volume.image or ''}{path}"

    # What is there.

    def _told(self, path: str, attributes: os.stat_result, created: float) -> dict[str, Any]:
        kinds = {stat.S_IFREG: "file", stat.S_IFDIR: "directory", stat.S_IFLNK: "link"}
        kind = kinds.get(stat.S_IFMT(attributes.st_mode), "other")
        return {
            "name": path,
            "size": attributes.st_size if kind == "file" else 0,
            "type": kind,
            "created": created,
            "mtime": attributes.st_mtime,
            "mode": attributes.st_mode,
            "uid": attributes.st_uid,
            "gid": attributes.st_gid,
            "ino": attributes.st_ino,
            "nlink": attributes.st_nlink,
        }

    def info(self, path: str, **kwargs: Any) -> dict[str, Any]:
        """Type, size, times and more. A symbolic link is what it leads to, with its target as "destination"."""
        path = self._strip_protocol(path)
        here = self.volume.path(path)
        info = self._told(path, here.lstat(), self._created(path, False))
        if info["type"] == "link":
            target = str(here.readlink())
            try:
                info = self._told(path, here.stat(), self._created(path, True))
            except FileNotFoundError:
                pass
            info.update(islink=True, destination=target)
        return info

    def _created(self, path: str, follow: bool) -> float:
        return self.volume._native.stat(path, follow)[9] / 10**9

    def ls(self, path: str, detail: bool = True, **kwargs: Any) -> list[Any]:
        """What a directory holds, or a file itself."""
        path = self._strip_protocol(path)
        try:
            names = [str(entry) for entry in self.volume.path(path).iterdir()]
        except NotADirectoryError:
            names = [path]
        if not detail:
            return names
        infos = []
        for name in names:
            try:
                infos.append(self.info(name))
            except FileNotFoundError:
                # Removed since it was listed.
                continue
        return infos

    def exists(self, path: str, **kwargs: Any) -> bool:
        """Whether a path leads to something."""
        return self.volume.path(self._strip_protocol(path)).exists()

    def lexists(self, path: str, **kwargs: Any) -> bool:
        """Whether there is something of this name, be it a broken link."""
        return self.volume.path(self._strip_protocol(path)).exists(follow_symlinks=False)

    def isfile(self, path: str) -> bool:
        """Whether a path leads to a regular file."""
        return self.volume.path(self._strip_protocol(path)).is_file()

    def isdir(self, path: str) -> bool:
        """Whether a path leads to a directory."""
        return self.volume.path(self._strip_protocol(path)).is_dir()

    def created(self, path: str) -> datetime.datetime:
        """When a file was made."""
        return _time(self.info(path)["created"])

    def modified(self, path: str) -> datetime.datetime:
        """When a file's content was last changed."""
        return _time(self.info(path)["mtime"])

    def ukey(self, path: str) -> str:
        """Another one whenever the content has changed."""
        attributes = self.volume.path(self._strip_protocol(path)).stat()
        return str(tokenize(attributes.st_ino, attributes.st_mtime_ns, attributes.st_ctime_ns, attributes.st_size))

    # Changes of names.

    def mkdir(self, path: str, create_parents: bool = True, **kwargs: Any) -> None:
        """Makes a directory."""
        self.volume.path(self._strip_protocol(path)).mkdir(parents=create_parents)

    def makedirs(self, path: str, exist_ok: bool = False) -> None:
        """Makes a directory and those above it."""
        self.volume.path(self._strip_protocol(path)).mkdir(parents=True, exist_ok=exist_ok)

    def rmdir(self, path: str) -> None:
        """Removes an empty directory."""
        self.volume.path(self._strip_protocol(path)).rmdir()

    def rm_file(self, path: str) -> None:
        """Removes a file."""
        self.volume.path(self._strip_protocol(path)).unlink()

    def _rm(self, path: str) -> None:
        self.rm_file(path)

    def rm(self, path: str | list[str], recursive: bool = False, maxdepth: int | None = None) -> None:
        """Removes files, and directories with what is in them if `recursive`."""
        if maxdepth is not None:
            super().rm(path, recursive=recursive, maxdepth=maxdepth)
            return
        paths = [path] if isinstance(path, (str, os.PathLike)) else path
        for name in self.expand_path(paths, recursive=False):
            here = self.volume.path(name)
            if here.is_symlink() or not here.is_dir():
                here.unlink()
            elif not recursive:
                here.rmdir()
            elif here.parent == here:
                for entry in list(here.iterdir()):
                    self.rm(str(entry), recursive=True)
            else:
                here.rmtree()

    def mv(self, path1: Any, path2: Any, recursive: bool = False, maxdepth: int | None = None, **kwargs: Any) -> None:
        """Renames a file or directory atomically; several are moved one after another."""
        simple = isinstance(path1, str) and isinstance(path2, str) and not _has_magic(path1)
        if not simple or maxdepth is not None:
            super().mv(path1, path2, recursive=recursive, maxdepth=maxdepth, **kwargs)
            return
        source, target = self._strip_protocol(path1), self._strip_protocol(path2)
        if self.isdir(target) and (path2.endswith("/") or not self.isdir(source)):
            target = f"{target.rstrip('/')}/{source.rsplit('/', 1)[-1]}"
        self._with_parents(target, lambda: self.volume.path(source).replace(target))

    def touch(self, path: str, truncate: bool = True, **kwargs: Any) -> None:
        """Makes an empty file, or empties one; without `truncate` sets its times only."""
        path = self._strip_protocol(path)
        here = self.volume.path(path)
        if truncate:
            self._with_parents(path, lambda: here.write_bytes(b""))
        else:
            self._with_parents(path, here.touch)

    def cp_file(self, path1: str, path2: str, **kwargs: Any) -> None:
        """Copies a file; makes a directory for a directory."""
        source, target = self._strip_protocol(path1), self._strip_protocol(path2)
        if self.isdir(source):
            self.makedirs(target, exist_ok=True)
            return
        with self.volume.open(source, "rb", 0) as reader, self._writer(target, "wb") as writer:
            _copy(reader, writer)
            if self.durable:
                writer.sync()

    # Content.

    def _open(
        self,
        path: str,
        mode: str = "rb",
        block_size: Any = None,
        autocommit: bool = True,
        cache_options: Any = None,
        **kwargs: Any,
    ) -> Any:
        buffering = -1 if block_size in (None, "default") else block_size
        if not autocommit and "r" not in mode:
            return _Staged(self, path, mode)
        if mode == "rb":
            return self.volume.open(path, mode, buffering or -1)
        if "r" in mode:
            return self._durable(self.volume.open(path, mode, buffering or -1))
        return self._durable(self._writer(path, mode))

    def _durable(self, file: Any) -> Any:
        return _DurableFile(file) if self.durable else file

    def _writer(self, path: str, mode: str) -> Any:
        return self._with_parents(path, lambda: self.volume.open(path, mode))

    def _with_parents(self, path: str, act: Any) -> Any:
        try:
            return act()
        except FileNotFoundError:
            parent = self._parent(path)
            if not self.auto_mkdir or self.volume.path(parent).exists():
                raise
            self.makedirs(parent, exist_ok=True)
            return act()

    def cat_file(self, path: str, start: int | None = None, end: int | None = None, **kwargs: Any) -> bytes:
        """A file's content, or a range of it; negative positions count from its end."""
        path = self._strip_protocol(path)
        if start is None and end is None:
            return self.volume.path(path).read_bytes()
        with self.volume.open(path, "rb", 0) as file:
            size = file.stat().st_size
            first, last, _ = slice(start, end).indices(size)
            return file.pread(max(0, last - first), first)

    def pipe_file(self, path: str, value: Any, mode: str = "overwrite", **kwargs: Any) -> None:
        """Makes a file of these bytes, or replaces its content."""
        if self._intrans:
            super().pipe_file(path, value, mode=mode, **kwargs)
            return
        path = self._strip_protocol(path)
        with self._with_parents(path, lambda: self.volume.open(path, "xb" if mode == "create" else "wb", 0)) as file:
            _write_all(file, memoryview(value).cast("B"))
            if self.durable:
                file.sync()

    def put_file(
        self, lpath: str, rpath: str, callback: Any = None, mode: str = "overwrite", **kwargs: Any
    ) -> None:
        """Copies a file of the host into the volume."""
        if os.path.isdir(lpath):
            self.makedirs(rpath, exist_ok=True)
            return
        path = self._strip_protocol(rpath)
        with open(lpath, "rb", buffering=0) as reader:
            if callback is not None:
                callback.set_size(os.fstat(reader.fileno()).st_size)
            how = "xb" if mode == "create" else "wb"
            if self._intrans:
                with self.open(path, how) as staged:
                    _copy(reader, staged, callback)
                return
            with self._with_parents(path, lambda: self.volume.open(path, how, 0)) as writer:
                _copy(reader, writer, callback)
                if self.durable:
                    writer.sync()


def _has_magic(path: str) -> bool:
    return any(letter in path for letter in "*?[")


def _time(seconds: float) -> datetime.datetime:
    return datetime.datetime.fromtimestamp(seconds, tz=datetime.timezone.utc)


def _opened(image: str, options: dict[str, Any]) -> Volume:
    try:
        return Volume(image, **options)
    except OSError as error:
        if error.errno not in (errno.EACCES, errno.EPERM, errno.EROFS) or "read_only" in options:
            raise
        return Volume(image, **options, read_only=True)


def _write_all(file: Any, data: memoryview) -> None:
    while data:
        data = data[file.write(data) :]


def _copy(reader: Any, writer: Any, callback: Any = None) -> None:
    buffer = memoryview(bytearray(_COPY_BYTES))
    while True:
        count = reader.readinto(buffer)
        if not count:
            return
        _write_all(writer, buffer[:count])
        if callback is not None:
            callback.relative_update(count)


class _Wrapped:
    """A file whose end is another one; all else is the file's own."""

    def __init__(self, file: Any) -> None:
        self._file = file

    def __getattr__(self, name: str) -> Any:
        return getattr(self._file, name)

    def __enter__(self) -> Any:
        return self

    def __exit__(self, *exception: Any) -> None:
        self.close()

    def __iter__(self) -> Any:
        return iter(self._file)

    def close(self) -> None:
        raise NotImplementedError


class _DurableFile(_Wrapped):
    """A file that is durable when it is closed."""

    def close(self) -> None:
        if not self._file.closed:
            try:
                self._file.sync()
            finally:
                self._file.close()


class _Staged(_Wrapped):
    """A file of a transaction of fsspec's: it has a name of its own until the transaction ends."""

    def __init__(self, fs: SynclineFileSystem, path: str, mode: str) -> None:
        self.fs = fs
        self.path: str = fs._strip_protocol(path)
        parent, _, name = self.path.rpartition("/")
        self.temporary = f"{parent}/.{name[:200]}.{uuid.uuid4().hex}"
        if "x" in mode and fs.exists(self.path):
            raise FileExistsError(errno.EEXIST, "file exists", self.path)
        super().__init__(fs._writer(self.temporary, "wb"))
        if "a" in mode and fs.exists(self.path):
            with fs.volume.open(self.path, "rb", 0) as old:
                _copy(old, self._file)

    def close(self) -> None:
        """Its content is durable before its name is changed."""
        if not self._file.closed:
            self._file.sync()
            self._file.close()

    def discard(self) -> None:
        self._file.close()
        self.fs.volume.path(self.temporary).unlink(missing_ok=True)


class _Together(_Transaction):  # type: ignore[misc]
    """Gives all files of a transaction their names by one transaction of the volume."""

    def complete(self, commit: bool = True) -> None:
        files: list[_Staged] = list(self.files)
        self.files.clear()
        try:
            if commit and files:
                for file in files:
                    file.close()
                with self.fs.volume.transaction() as t:
                    for file in files:
                        t.replace(file.temporary, file.path)
                files = []
        finally:
            for file in files:
                file.discard()
            self.fs._intrans = False
            self.fs._transaction = None


SynclineFileSystem.transaction_type = _Together
