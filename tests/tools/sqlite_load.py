"""A load for SQLite whose result can be computed without it.

usage: sqlite_load.py run|verify DATABASE JOURNAL_MODE ROWS
"""

import hashlib
import multiprocessing
import sqlite3
import sys
import time


def body(key, version):
    return hashlib.sha256(f"{key}/{version}".encode()).hexdigest() * (1 + key % 40)


def expected(rows):
    """Every third row is updated, every seventh deleted."""
    return [(k, body(k, 1 if k % 3 == 0 else 0)) for k in range(rows) if k % 7]


def connect(path, mode):
    database = sqlite3.connect(path, isolation_level=None, timeout=30)
    got = database.execute(f"pragma journal_mode={mode}").fetchone()[0]
    assert got == mode, f"journal mode is {got}, not {mode}"
    database.execute("pragma synchronous=full")
    return database


def read_along(path, stop, bad):
    """A second process reads while the first writes: it must always see a whole transaction."""
    database = sqlite3.connect(path, timeout=30)
    while not stop.is_set():
        a, b = database.execute("select (select count(*) from t), (select n from counter)").fetchone()
        if a != b:
            bad.value = 1
            return
        time.sleep(0.002)


def run(path, mode, rows):
    database = connect(path, mode)
    database.execute("create table t (k integer primary key, body text)")
    database.execute("create table counter (n integer)")
    database.execute("insert into counter values (0)")
    database.execute("create index by_body on t (body)")
    context = multiprocessing.get_context("fork")
    stop, bad = context.Event(), context.Value("i", 0)
    reader = context.Process(target=read_along, args=(path, stop, bad))
    reader.start()
    begun = time.monotonic()
    for k in range(rows):
        database.execute("begin immediate")
        database.execute("insert into t values (?, ?)", (k, body(k, 0)))
        database.execute("update counter set n = n + 1")
        if k % 3 == 0:
            database.execute("update t set body = ? where k = ?", (body(k, 1), k))
        database.execute("commit")
        # Without a journal there is nothing to roll back with. What is rolled back is mostly of one size: rolling back
        # the whole table each time is work that grows with the square of the rows.
        if k % 50 == 7 and mode != "off":
            database.execute("begin immediate")
            database.execute("delete from t where k > ?", (-1 if k % 500 == 7 else k - 100,))
            database.execute("rollback")
    rate = rows / (time.monotonic() - begun)
    if mode == "wal":
        mapped = open("/proc/self/maps").read()
        assert path + "-shm" in mapped, "the -shm file is not mapped"
    stop.set()
    reader.join()
    assert reader.exitcode == 0 and not bad.value, "a reader saw half a transaction"
    database.execute("begin immediate")
    database.execute("delete from t where k % 7 = 0")
    database.execute("commit")
    check(database, rows)
    database.close()
    print(f"{rate:.0f} transactions/s")


def check(database, rows):
    answer = database.execute("pragma integrity_check").fetchall()
    assert answer == [("ok",)], answer
    got = database.execute("select k, body from t order by k").fetchall()
    assert got == expected(rows), "rows differ"
    indexed = database.execute("select count(*) from t indexed by by_body where body > ''").fetchone()[0]
    assert indexed == len(got), "the index misses rows"


def verify(path, mode, rows):
    database = sqlite3.connect(path)
    check(database, rows)
    database.close()


action, path, mode, rows = sys.argv[1:]
{"run": run, "verify": verify}[action](path, mode, int(rows))
