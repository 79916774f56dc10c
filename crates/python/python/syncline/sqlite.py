"""SQLite's databases in a volume, in this process. A commit in the default journal mode is one write and one flush.

>>> import syncline, syncline.sqlite
>>> volume = syncline.Volume.in_memory(64 << 20)
>>> connection = syncline.sqlite.connect(volume, "/db")
>>> with connection:
...     _ = connection.execute("CREATE TABLE ledger (coins)")
...     _ = connection.execute("INSERT INTO ledger VALUES (42)")
>>> connection.execute("SELECT coins FROM ledger").fetchall()
[(42,)]
>>> connection.close()
>>> volume.close()

`driver` says which SQLite is used: the interpreter's own ``sqlite3`` where it can load extensions, and ``apsw`` where
it cannot and apsw is installed. The two have connections of different classes; both are context managers and have
``execute``.
"""

from __future__ import annotations

import os
import threading
from typing import Any, Literal
from urllib.parse import quote

from . import _native
from ._image import known_as
from ._volume import Volume, open_volume_of

Driver = Literal["sqlite3", "apsw"]

_lock = threading.Lock()
_registered: list[Driver] = []


class NoDriverError(ImportError):
    """No SQLite of this interpreter can load extensions."""


def driver() -> Driver:
    """Which SQLite `connect` uses: "sqlite3" or "apsw". Raises `NoDriverError` if there is none.

    >>> import syncline.sqlite
    >>> syncline.sqlite.driver() in ("sqlite3", "apsw")
    True
    """
    if _registered:
        return _registered[0]
    if _can_load():
        return "sqlite3"
    try:
        import apsw  # noqa: F401
    except ImportError:
        raise NoDriverError(
            "this interpreter's sqlite3 was built without loadable extensions; install apsw, or use another Python"
        ) from None
    return "apsw"


def connect(
    volume: Volume | str | os.PathLike[str], database: str, *, using: Driver | None = None, **arguments: Any
) -> Any:
    """Opens a database in a volume.

    :param volume: an open `Volume`, or the path of an image or block device. An image that this process has not open
        is opened by the first connection and closed with the last one
    :param database: the path of the database in the volume; it is made if it is not there
    :param using: "sqlite3" or "apsw", instead of what `driver` says. A process uses one of the two
    :param arguments: those of ``sqlite3.connect`` (``timeout``, ``isolation_level`` ...) or of ``apsw.Connection``

    A `Volume` cannot be closed while connections to it are open.
    """
    chosen = using or driver()
    _register(chosen)
    uri = f"file:{quote('/' + database.lstrip('/'))}?vfs=syncline&volume={quote(_name(volume), safe='')}"
    if chosen == "sqlite3":
        import sqlite3

        return sqlite3.connect(uri, uri=True, **arguments)
    import apsw

    flags = arguments.pop("flags", apsw.SQLITE_OPEN_READWRITE | apsw.SQLITE_OPEN_CREATE)
    return apsw.Connection(uri, flags=flags | apsw.SQLITE_OPEN_URI, **arguments)


def _name(volume: Volume | str | os.PathLike[str]) -> str:
    """What SQLite knows a volume as."""
    if not isinstance(volume, Volume):
        image = known_as(volume)
        opened = open_volume_of(image)
        if opened is None:
            return image
        volume = opened
    name = volume.image or f"/syncline-in-memory/{volume._number}"
    volume._native.lend(name)
    return name


def _can_load() -> bool:
    try:
        import sqlite3
    except ImportError:
        return False
    return hasattr(sqlite3.Connection, "enable_load_extension")


def _register(chosen: Driver) -> None:
    """Has SQLite load this package's library, which knows the volumes, once for the process."""
    with _lock:
        if chosen in _registered:
            return
        if chosen not in ("sqlite3", "apsw"):
            raise ValueError(f'using is "sqlite3" or "apsw", not {chosen!r}')
        if _registered:
            raise ValueError(f"this process uses {_registered[0]} for its databases already, and not {chosen} too")
        if chosen == "sqlite3":
            if not _can_load():
                raise NoDriverError("this interpreter's sqlite3 was built without loadable extensions")
            import sqlite3

            connection: Any = sqlite3.connect(":memory:")
        else:
            import apsw

            connection = apsw.Connection(":memory:")
        try:
            connection.enable_load_extension(True)
            connection.load_extension(_native.__file__)
        finally:
            connection.close()
        _registered.append(chosen)
