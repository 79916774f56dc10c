#!/usr/bin/env python3
"""Pools of forked processes on one volume: what a worker was told is committed is there, whatever the parent holds when it forks.

usage: pool.py LIBRARY IMAGE DIRECTORY
Exit code 77: this Python cannot load extensions.
"""

import multiprocessing
import os
import sqlite3
import sys

library, image, directory = sys.argv[1:]
# Errors that are expected here are told on standard error otherwise.
os.environ["SYNCLINE_SQLITE_QUIET"] = "1"
WORKERS, ROUNDS = 4, 5
inherited = None


def connect(name, timeout):
    return sqlite3.connect(f"file:/{name}?vfs=syncline&volume={image}", uri=True, timeout=timeout, isolation_level=None)


def load():
    connection = sqlite3.connect(":memory:")
    if not hasattr(connection, "enable_load_extension"):
        print("this Python cannot load extensions into SQLite", file=sys.stderr)
        sys.exit(77)
    connection.enable_load_extension(True)
    connection.load_extension(library)


def insert(arguments):
    """Commits one row over a connection of its own; the row if that was acknowledged, else why not."""
    name, row, timeout = arguments
    try:
        connection = connect(name, timeout)
        connection.execute("INSERT INTO t VALUES(?)", (row,))
        connection.close()
        return row
    except sqlite3.Error as error:
        return str(error)


def insert_over_inherited(row):
    """In the transaction that the parent has begun."""
    try:
        inherited.execute("INSERT INTO t VALUES(?)", (row,))
        inherited.execute("COMMIT")
        return row
    except sqlite3.Error as error:
        return str(error)


def rows(name):
    connection = connect(name, 60)
    found = [row for (row,) in connection.execute("SELECT a FROM t ORDER BY a")]
    sound = connection.execute("PRAGMA integrity_check").fetchall()
    connection.close()
    assert sound == [("ok",)], sound
    return found


def run(work, tasks):
    with multiprocessing.get_context("fork").Pool(WORKERS) as pool:
        return pool.map(work, tasks, chunksize=1)


def expect(what, want, found):
    if want != found:
        print(f"{what}: {found}, not {want}")
        sys.exit(1)


def of_a_parent_that_has_closed(mode):
    """The workers take turns: each waits until the one before has closed."""
    name = f"closed-{mode}"
    parent = connect(name, 60)
    parent.execute(f"PRAGMA journal_mode={mode}")
    parent.execute("CREATE TABLE t(a)")
    parent.close()
    told = run(insert, [(name, row, 600) for row in range(WORKERS * ROUNDS)])
    expect(f"acknowledged, {mode}", list(range(WORKERS * ROUNDS)), told)
    expect(f"there, {mode}", told, rows(name))


def of_a_parent_that_has_it_open(mode):
    """Nobody but the parent commits, and nobody is told otherwise."""
    global inherited
    name = f"open-{mode}"
    inherited = connect(name, 60)
    inherited.execute(f"PRAGMA journal_mode={mode}")
    inherited.execute("CREATE TABLE t(a)")
    inherited.execute("BEGIN IMMEDIATE")
    inherited.execute("INSERT INTO t VALUES(-1)")
    told = run(insert, [(name, row, 0) for row in range(WORKERS * ROUNDS)])
    expect(f"told beside a parent, {mode}", {"unable to open database file"}, set(told))
    told = run(insert_over_inherited, range(WORKERS * ROUNDS))
    acknowledged = [row for row in told if isinstance(row, int)]
    expect(f"acknowledged over the parent's connection, {mode}", [], acknowledged)
    inherited.execute("COMMIT")
    inherited.close()
    inherited = None
    expect(f"there, {mode}", [-1], rows(name))


load()
for mode in ["DELETE", "WAL"]:
    of_a_parent_that_has_closed(mode)
    of_a_parent_that_has_it_open(mode)
