#!/usr/bin/env python3
"""Random programs of processes on one volume: forks in every state, exec, daemons, pools, kills, and what they were told.

usage: tests/crash/processes.py [--rounds N] [--seed S] [--scratch DIR]

Each round is a program that is drawn from the seed: a process that opens databases on the VFS, commits, leaves transactions open, has threads
that commit, forks children in the midst of that, and closes, ends or is killed. The children use what they have inherited, open connections of
their own, form pools, become other programs or daemons, or only end. A process notes in a file what it is about to commit and what
was acknowledged. Afterwards the volume has to be free at once, whichever idle children still live; every acknowledged row has to be there, and
none that nobody has tried; the check has to be clean; and no process may have died of anything but a kill that was meant. The processes' turns
are the machine's, so a seed repeats the programs and not each interleaving.
"""

import argparse
import ctypes
import os
import random
import shutil
import signal
import sys
import tempfile
import threading
import time
import traceback

from volume import clean_up_on_signals, find_syncline, run

DATABASES = ["a", "b"]
# Generous: they only have to end what hangs.
PATIENCE_S = 180
OWN = "its own"


def sqlite_of_this_python():
    import sqlite3
    return sqlite3 if hasattr(sqlite3.Connection, "enable_load_extension") else None


class Skip(Exception):
    """The machine cannot do what the tests need."""


def find_library(command):
    built = os.path.dirname(os.path.realpath(command))
    for library in (f"{built}/libsyncline_sqlite.so", f"{built}/deps/libsyncline_sqlite.so"):
        if os.path.exists(library):
            return library
    raise Skip("libsyncline_sqlite.so was not built beside the command")


class Log:
    """What the processes of a round note. Each line is written at once, and outlives its process."""

    def __init__(self, path):
        self.path = path
        self.file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)

    def note(self, *words):
        os.write(self.file, (" ".join(str(word) for word in words) + "\n").encode())

    def read(self):
        with open(self.path) as lines:
            return [line.split() for line in lines]


class Process:
    """One process of a program. What is drawn follows from the seed; rows are named by who writes them."""

    def __init__(self, image, log, seed, depth=0):
        self.image, self.log, self.depth = image, log, depth
        self.random = random.Random(seed)
        self.sqlite = sqlite_of_this_python()
        self.connections = []
        self.inherited = []
        self.children = []
        self.killed = set()
        self.threads = []
        self.stop = threading.Event()

    # Databases.

    def connect(self, timeout):
        name = self.random.choice(DATABASES)
        uri = f"file:/{name}?vfs=syncline&volume={self.image}"
        if self.random.random() < 0.3:
            uri += f"&timeout={int(timeout * 1000)}"
        connection = self.sqlite.connect(uri, uri=True, timeout=timeout, isolation_level=None, check_same_thread=False)
        connection.execute(f"PRAGMA journal_mode={self.random.choice(['DELETE', 'WAL', 'PERSIST'])}")
        return name, connection

    def commit(self, opened, what=OWN):
        """One row; a refusal is as good as an acknowledgement, but both have to be true."""
        name, connection = opened
        row = int.from_bytes(os.urandom(7), "little")
        self.log.note("try", name, row)
        try:
            if not connection.in_transaction:
                connection.execute("BEGIN IMMEDIATE")
            connection.execute("INSERT INTO t VALUES(?, ?)", (row, bytes(self.random.choice([10, 3000, 60_000]))))
            connection.execute("COMMIT")
        except self.sqlite.Error as error:
            self.log.note("refused", what.replace(" ", "-"), type(error).__name__, str(error).replace(" ", "-"))
            if what == OWN and connection.in_transaction:
                connection.execute("ROLLBACK")
            return
        self.log.note("ack", name, row)

    def open_own(self):
        try:
            self.connections.append(self.connect(self.random.choice([0, 0.05, 0.3])))
        except self.sqlite.Error as error:
            self.log.note("refused", "opening", type(error).__name__, str(error).replace(" ", "-"))

    def commit_some(self):
        for _ in range(self.random.choice([1, 3, 8])):
            if self.connections:
                self.commit(self.random.choice(self.connections))

    def leave_open(self):
        """A transaction that somebody else may fork in."""
        if self.connections:
            name, connection = self.random.choice(self.connections)
            row = int.from_bytes(os.urandom(7), "little")
            self.log.note("try", name, row)
            try:
                connection.execute(self.random.choice(["BEGIN", "BEGIN IMMEDIATE"]))
                connection.execute("INSERT INTO t VALUES(?, ?)", (row, bytes(200_000)))
            except self.sqlite.Error:
                pass

    def close(self):
        while self.connections:
            self.connections.pop()[1].close()

    # Threads.

    def start_threads(self):
        """Threads that commit while this process forks."""
        def work(opened):
            while not self.stop.is_set():
                self.commit(opened)
        for _ in range(self.random.choice([1, 2])):
            try:
                opened = self.connect(0.5)
            except self.sqlite.Error:
                continue
            self.threads.append((threading.Thread(target=work, args=(opened,)), opened))
            self.threads[-1][0].start()

    def end_threads(self):
        self.stop.set()
        for thread, opened in self.threads:
            thread.join()
            opened[1].close()
        self.threads = []
        self.stop.clear()

    # Children.

    def fork(self, act):
        """`act` is what the child does; it ends behind it."""
        # All that is drawn is drawn in the parent.
        child = Process(self.image, self.log, self.random.random(), self.depth + 1)
        pid = os.fork()
        if pid:
            self.children.append(pid)
            return pid
        code = 3
        try:
            signal.alarm(PATIENCE_S)
            child.inherited = self.connections
            act(child)
            code = 0
        except BaseException:
            self.log.note("bad", "a-child:", traceback.format_exc(limit=-2).replace("\n", " | "))
        finally:
            os._exit(code)

    def use_inherited(self):
        for opened in self.inherited:
            self.commit(opened, "inherited")
        if self.random.random() < 0.5:
            for _, connection in self.inherited:
                connection.close()

    def work_alone(self):
        self.open_own()
        self.commit_some()
        if self.depth < 2 and self.random.random() < 0.3:
            self.fork_some()
        if self.random.random() < 0.7:
            self.close()
        self.wait()

    def become_another(self):
        os.execv("/bin/sleep", ["sleep", self.random.choice(["0", "0.02"])])

    def pool(self):
        """Workers that take turns, or are refused."""
        for _ in range(3):
            self.fork(Process.work_alone)
        self.wait()

    def idle(self):
        """Lives on, with all that it has inherited, until the round is over."""
        self.log.note("idle", os.getpid())
        while True:
            signal.pause()

    def daemon(self):
        os.setsid()
        if os.fork():
            os._exit(0)
        signal.alarm(PATIENCE_S)
        self.log.note("daemon", os.getpid())
        self.use_inherited()
        self.work_alone()
        self.log.note("gone", os.getpid())

    def fork_some(self):
        # A child of a process whose threads are inside of SQLite may find SQLite's own locks taken.
        busy = [lambda child: None, Process.become_another, Process.idle]
        quiet = busy + [Process.use_inherited, Process.work_alone, Process.pool, Process.daemon]
        for _ in range(self.random.choice([1, 2, 4])):
            act = self.random.choice(busy if self.threads else quiet)
            pid = self.fork(act)
            if act is Process.idle:
                self.children.remove(pid)
            elif act is not Process.daemon and self.random.random() < 0.2:
                time.sleep(self.random.random() * 0.05)
                os.kill(pid, signal.SIGKILL)
                self.killed.add(pid)

    def wait(self):
        while self.children:
            pid = self.children.pop()
            _, status = os.waitpid(pid, 0)
            meant = pid in self.killed and os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGKILL
            if status and not meant:
                self.log.note("bad", "a", "child", "ended", "with", "status", status)

    STEPS = [open_own] * 3 + [commit_some] * 4 + [leave_open, close, wait, start_threads, end_threads] + [fork_some] * 4

    def program(self):
        self.open_own()
        for _ in range(self.random.choice([4, 8, 12])):
            self.random.choice(Process.STEPS)(self)
        if self.random.random() < 0.3:
            # Its children have nobody any more to wait for them; those that are at work are waited for by the round.
            self.wait()
            os.kill(os.getpid(), signal.SIGKILL)
        self.end_threads()
        if self.random.random() < 0.7:
            self.close()
        self.wait()


def adopt_orphans():
    """Whoever loses its parent in a round becomes a child of this process, and can be waited for (PR_SET_CHILD_SUBREAPER)."""
    if ctypes.CDLL(None, use_errno=True).prctl(36, 1, 0, 0, 0):
        raise Skip(f"orphans cannot be adopted: {os.strerror(ctypes.get_errno())}")


def own_children():
    children = set()
    for entry in filter(str.isdigit, os.listdir("/proc")):
        try:
            with open(f"/proc/{entry}/stat") as stat:
                parent = int(stat.read().rpartition(")")[2].split()[1])
        except (FileNotFoundError, ProcessLookupError):
            continue
        if parent == os.getpid():
            children.add(int(entry))
    return children


def reap_what_has_ended():
    try:
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass
    except ChildProcessError:
        pass


class Rounds:
    def __init__(self, command, library, work):
        self.command, self.library, self.work = command, library, work
        self.image = os.path.join(work, "image")
        self.rows = {name: set() for name in DATABASES}
        self.acknowledged = self.refused = self.processes = 0

    def format(self):
        run(self.command, "mkfs", "--size", "64M", "--journal-size", "1M", self.image)
        self.in_process(lambda: [self.judge_database(name, "CREATE TABLE t(a INTEGER PRIMARY KEY, b)") for name in DATABASES])

    def in_process(self, act):
        """In a process of its own, so that this one never has the volume. What it prints is for the person who runs this."""
        pid = os.fork()
        if pid == 0:
            code = 1
            try:
                signal.alarm(PATIENCE_S)
                act()
                code = 0
            except BaseException:
                traceback.print_exc(limit=-3)
                sys.stdout.flush()
            finally:
                os._exit(code)
        return os.waitpid(pid, 0)[1]

    def judge_database(self, name, sql):
        uri = f"file:/{name}?vfs=syncline&volume={self.image}"
        connection = sqlite_of_this_python().connect(uri, uri=True, timeout=20, isolation_level=None)
        found = connection.execute(sql).fetchall()
        sound = connection.execute("PRAGMA integrity_check").fetchall()
        connection.close()
        assert sound == [("ok",)], f"{name}: {sound}"
        return {row for (row,) in found}

    def judge(self, log):
        """The volume is free and sound, and holds what it has to."""
        lines = log.read()
        bad = [" ".join(words[1:]) for words in lines if words[0] == "bad"]
        assert not bad, bad[0]
        for name in DATABASES:
            of = lambda word: {int(words[2]) for words in lines if words[:2] == [word, name]}
            acknowledged, tried = of("ack"), of("try")
            found = self.judge_database(name, "SELECT a FROM t")
            missing = (self.rows[name] | acknowledged) - found
            assert not missing, f"{name}: {len(missing)} acknowledged rows are not there, of {len(acknowledged)} in this round"
            made_up = found - self.rows[name] - tried
            assert not made_up, f"{name}: {len(made_up)} rows that nobody has written"
            log.note("found", name, *found)

    def others_are_gone(self, log):
        """Waits for what the program has left behind: daemons, and the children of what was killed. The idle ones live on."""
        until = time.monotonic() + PATIENCE_S
        while True:
            reap_what_has_ended()
            idle = {int(words[1]) for words in log.read() if words[0] == "idle"}
            if not (left := own_children() - idle):
                break
            assert time.monotonic() < until, f"processes that do not end: {left}"
            time.sleep(0.01)
        of = lambda word: {words[1] for words in log.read() if words[0] == word}
        died = of("daemon") - of("gone")
        # Which of them was ended by its alarm or an error has said so, or has said nothing.
        assert not died, f"a daemon died: {died}"

    def round(self, seed):
        path = os.path.join(self.work, f"log-{seed}")
        log = Log(path)
        try:
            status = self.in_process(lambda: Process(self.image, log, seed).program())
            assert status in (0, signal.SIGKILL), f"the program ended with status {status}"
            self.others_are_gone(log)
            assert self.in_process(lambda: self.judge(log)) == 0, "see above"
            lines = log.read()
            for words in lines:
                if words[0] == "found":
                    self.rows[words[1]] = {int(row) for row in words[2:]}
            self.acknowledged += sum(words[0] == "ack" for words in lines)
            self.refused += sum(words[0] == "refused" for words in lines)
            run(self.command, "check", self.image)
        finally:
            # Each has said who it is.
            for words in log.read():
                if words[0] in ("idle", "daemon") and is_of_round(words[1]):
                    os.kill(int(words[1]), signal.SIGKILL)
            os.close(log.file)
        os.unlink(path)


def is_of_round(pid):
    """Whether the number is still that of one of ours."""
    try:
        with open(f"/proc/{pid}/cmdline", "rb") as line:
            return os.path.basename(__file__).encode() in line.read()
    except OSError:
        return False


def load(library):
    connection = sqlite_of_this_python().connect(":memory:")
    connection.enable_load_extension(True)
    connection.load_extension(library)
    connection.close()


def main():
    parser = argparse.ArgumentParser(description="Random programs of processes on one volume.")
    parser.add_argument("--rounds", type=int, default=50)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--scratch", default=os.environ.get("SCRATCH", "/var/tmp"))
    arguments = parser.parse_args()
    other = "/usr/bin/python3"
    if not sqlite_of_this_python():
        # Not every Python may load extensions; the distribution's may.
        if os.path.realpath(sys.executable) != os.path.realpath(other) and os.path.exists(other):
            os.execv(other, [other, *sys.argv])
        print("skipped: processes: no Python here loads extensions into SQLite\n0 passed, 0 failed, 1 skipped")
        return 0
    # What is refused is expected here.
    os.environ["SYNCLINE_SQLITE_QUIET"] = "1"
    clean_up_on_signals()
    work = tempfile.mkdtemp(prefix="syncline-processes-", dir=arguments.scratch)
    passed, failed, begun = 0, 0, time.monotonic()
    try:
        command = find_syncline()
        if not command:
            raise Skip("no syncline command was built")
        library = find_library(command)
        load(library)
        adopt_orphans()
        rounds = Rounds(command, library, work)
        rounds.format()
        for number in range(arguments.rounds):
            rounds.round(arguments.seed * 1_000_000 + number)
            passed += 1
    except Skip as why:
        print(f"skipped: processes: {why}\n0 passed, 0 failed, 1 skipped")
        return 0
    except AssertionError as error:
        failed = 1
        print(f"FAIL  processes: round {passed + 1}: {str(error)[:1500]}")
        print(f"      again: tests/crash/processes.py --rounds {passed + 1} --seed {arguments.seed}")
    finally:
        shutil.rmtree(work, ignore_errors=True)
    print(f"processes (seed {arguments.seed}) in {time.monotonic() - begun:.0f} s, {rounds.acknowledged} commits acknowledged, "
          f"{rounds.refused} refused: {passed} passed, {failed} failed, 0 skipped")
    return failed


if __name__ == "__main__":
    sys.exit(main())
