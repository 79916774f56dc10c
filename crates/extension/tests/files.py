#!/usr/bin/env python3
"""What Python programs do with database files, on SQLite's own VFS and on a volume, with the same results.

usage: files.py LIBRARY IMAGE DIRECTORY
Exit code 77: this Python cannot load extensions.
"""

import sqlite3
import sys
import threading

library, image, directory = sys.argv[1:]


def connect(where, name, **options):
    if where == "host":
        return sqlite3.connect(f"file:{directory}/{name}", uri=True, **options)
    return sqlite3.connect(f"file:/{name}?vfs=syncline&volume={image}", uri=True, **options)


def load():
    connection = sqlite3.connect(":memory:")
    if not hasattr(connection, "enable_load_extension"):
        print("this Python cannot load extensions into SQLite", file=sys.stderr)
        sys.exit(77)
    connection.enable_load_extension(True)
    connection.load_extension(library)


def implicit_transactions(where):
    connection = connect(where, "implicit")
    connection.execute("CREATE TABLE t(a INTEGER PRIMARY KEY, b TEXT)")
    connection.executemany("INSERT INTO t(b) VALUES(?)", [(str(n),) for n in range(500)])
    connection.rollback()
    with connection:
        connection.executemany("INSERT INTO t(b) VALUES(?)", [(str(n),) for n in range(300)])
    try:
        with connection:
            connection.execute("DELETE FROM t")
            connection.execute("INSERT INTO t VALUES(1, 'x'), (1, 'y')")
    except sqlite3.IntegrityError:
        pass
    connection.close()
    again = connect(where, "implicit")
    result = again.execute("SELECT count(*), sum(a), max(b) FROM t").fetchall()
    again.close()
    return result


def blobs(where):
    connection = connect(where, "blobs", isolation_level=None)
    connection.execute("CREATE TABLE t(x BLOB)")
    connection.execute("INSERT INTO t VALUES(zeroblob(3000000))")
    if hasattr(connection, "blobopen"):
        with connection.blobopen("t", "x", 1) as blob:
            blob.seek(2_000_000)
            blob.write(b"somewhere")
    else:
        connection.execute("UPDATE t SET x=CAST(substr(x,1,2000000)||'somewhere'||substr(x,2000010) AS BLOB)")
    connection.execute("VACUUM")
    result = connection.execute("SELECT length(x), substr(x, 2000001, 9) FROM t").fetchall()
    connection.close()
    return result


def backups(where):
    source = connect(where, "blobs")
    target = connect(where, "copy")
    source.backup(target, pages=50)
    result = target.execute("PRAGMA integrity_check").fetchall() + target.execute("SELECT length(x) FROM t").fetchall()
    target.close()
    memory = sqlite3.connect(":memory:")
    source.backup(memory)
    result += memory.execute("SELECT count(*) FROM t").fetchall()
    source.close()
    return result


def iterators_and_writers(where):
    connection = connect(where, "cursor")
    connection.execute("PRAGMA journal_mode=WAL")
    with connection:
        connection.execute("CREATE TABLE t(a)")
        connection.executemany("INSERT INTO t VALUES(?)", [(n,) for n in range(1000)])
    seen = 0
    other = connect(where, "cursor")
    for (number,) in connection.execute("SELECT a FROM t ORDER BY a"):
        seen += number
        if number == 500:
            with other:
                other.execute("UPDATE t SET a=a+10000")
    result = [seen, other.execute("SELECT sum(a) FROM t").fetchall()]
    other.close()
    connection.close()
    return result


def threads(where):
    with connect(where, "threads") as connection:
        connection.execute("CREATE TABLE t(n INT)")
        connection.execute("INSERT INTO t VALUES(0)")

    def count():
        mine = connect(where, "threads", timeout=60, isolation_level=None)
        for _ in range(20):
            mine.execute("BEGIN IMMEDIATE")
            mine.execute("UPDATE t SET n=n+1")
            mine.execute("COMMIT")
        mine.close()

    running = [threading.Thread(target=count) for _ in range(4)]
    for thread in running:
        thread.start()
    for thread in running:
        thread.join()
    result = connection.execute("SELECT n FROM t").fetchall()
    connection.close()
    return result


def attached(where):
    connection = connect(where, "first", isolation_level=None)
    other = connect(where, "second")
    other.execute("CREATE TABLE t(a)")
    other.commit()
    name = other.execute("PRAGMA database_list").fetchall()[0][2]
    connection.execute("ATTACH ? AS other", (name,))
    connection.execute("CREATE TABLE main.t(a)")
    connection.execute("BEGIN")
    connection.execute("INSERT INTO main.t VALUES(1)")
    connection.execute("INSERT INTO other.t VALUES(2)")
    connection.execute("COMMIT")
    result = other.execute("SELECT a FROM t").fetchall()
    other.close()
    connection.execute("DETACH other")
    connection.close()
    return result


load()
failed = 0
for scenario in [implicit_transactions, blobs, backups, iterators_and_writers, threads, attached]:
    host, volume = scenario("host"), scenario("volume")
    if host != volume:
        print(f"{scenario.__name__}: {host} on the host, {volume} on the volume")
        failed += 1
sys.exit(1 if failed else 0)
