"""SQLite in the wheel."""

from __future__ import annotations

import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest
import syncline
import syncline.sqlite
from conftest import MIB

try:
    DRIVER: str | None = syncline.sqlite.driver()
except syncline.sqlite.NoDriverError:
    DRIVER = None

pytestmark = pytest.mark.skipif(DRIVER is None, reason="no SQLite here loads extensions, and apsw is not installed")


def rows(connection: Any, statement: str) -> list[Any]:
    return list(connection.execute(statement).fetchall())


def test_a_commit_is_one_write_and_one_flush(volume: syncline.Volume) -> None:
    connection = syncline.sqlite.connect(volume, "/db")
    connection.execute("CREATE TABLE t (a)")
    with connection:
        connection.execute("INSERT INTO t VALUES (1)")
    volume.checkpoint()
    before = volume.stats()
    with connection:
        connection.execute("INSERT INTO t VALUES (2)")
    after = volume.stats()
    assert after.device_flushes - before.device_flushes == 1
    assert after.device_writes - before.device_writes == 1
    assert rows(connection, "SELECT a FROM t ORDER BY a") == [(1,), (2,)]
    connection.close()
    assert (volume / "db").stat().st_size > 0


def test_a_volume_in_use_by_sqlite_cannot_be_closed(image: Path) -> None:
    volume = syncline.Volume.create(image, 64 * MIB)
    connection = syncline.sqlite.connect(volume, "db")
    with connection:
        connection.execute("CREATE TABLE t (a)")
    with pytest.raises(OSError, match="[Bb]usy"):
        volume.close()
    assert not volume.closed
    with connection:
        connection.execute("INSERT INTO t VALUES (1)")
    connection.close()
    volume.close()
    connection = syncline.sqlite.connect(image, "/db")
    assert rows(connection, "SELECT a FROM t") == [(1,)]
    connection.close()
    # The last connection has closed the volume.
    syncline.Volume(image).close()


def test_an_image_that_is_open_is_shared_with_sqlite(volume: syncline.Volume, image: Path) -> None:
    connection = syncline.sqlite.connect(str(image), "/a b/d?b".replace("/a b", ""))
    with connection:
        connection.execute("CREATE TABLE t (a)")
    connection.close()
    assert [path.name for path in volume.path().iterdir()] == ["d?b"]


def test_a_volume_in_memory_and_several_connections() -> None:
    with syncline.Volume.in_memory(64 * MIB) as volume, syncline.Volume.in_memory(64 * MIB) as other:
        first, second = (syncline.sqlite.connect(volume, "/db") for _ in range(2))
        with first:
            first.execute("CREATE TABLE t (a)")
        assert rows(second, "SELECT count(*) FROM t") == [(0,)]
        elsewhere = syncline.sqlite.connect(other, "/db")
        assert rows(elsewhere, "SELECT count(*) FROM sqlite_master") == [(0,)]
        for connection in (first, second, elsewhere):
            connection.close()


def test_threads_and_a_volume_beside(volume: syncline.Volume) -> None:
    first = syncline.sqlite.connect(volume, "/db")
    with first:
        first.execute("CREATE TABLE t (a)")
    failures: list[BaseException] = []

    def insert() -> None:
        try:
            connection = syncline.sqlite.connect(volume, "/db")
            set_timeout(connection)
            for number in range(20):
                with connection:
                    connection.execute("INSERT INTO t VALUES (?)", (number,))
                (volume / "beside").write_text(str(number))
            connection.close()
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=insert) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(120)
    assert not failures
    assert rows(first, "SELECT count(*) FROM t") == [(60,)]
    first.close()


def set_timeout(connection: Any) -> None:
    connection.execute("PRAGMA busy_timeout=60000").fetchall()


def test_the_other_driver_is_refused_once_one_is_used(volume: syncline.Volume) -> None:
    syncline.sqlite.connect(volume, "/db").close()
    other: Any = "apsw" if DRIVER == "sqlite3" else "sqlite3"
    with pytest.raises(ValueError, match="already"):
        syncline.sqlite.connect(volume, "/db", using=other)


@pytest.mark.parametrize("using", ["sqlite3", "apsw"])
def test_each_driver_where_it_is_there(image: Path, using: str) -> None:
    """In a process of its own, because a process uses one of the two."""
    syncline.Volume.create(image, 64 * MIB).close()
    program = f"""
import sys, syncline, syncline.sqlite
try:
    connection = syncline.sqlite.connect({str(image)!r}, "/db", using={using!r})
except ImportError as error:
    print(error)
    sys.exit(3)
connection.execute("CREATE TABLE t (a)")
with connection:
    connection.execute("INSERT INTO t VALUES (42)")
assert connection.execute("SELECT a FROM t").fetchall() == [(42,)]
connection.close()
with syncline.Volume({str(image)!r}) as volume:
    assert volume.path("db").stat().st_size > 0
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60)
    if done.returncode == 3:
        pytest.skip(done.stdout.strip())
    assert done.returncode == 0, done.stderr
