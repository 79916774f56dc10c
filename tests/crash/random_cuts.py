#!/usr/bin/env python3
"""Random operations, power cuts at random moments, and a model of what must be there.

usage: tests/crash/random_cuts.py [--cuts N] [--seed S] [--workers N] [--size MIB] [--backend syncline|ext4]

Several workers change a small tree each on one volume: create, write, append, truncate, punch, rename, exchange, link, unlink, mkdir,
rmdir, symlink, chmod, xattrs, fsync, fdatasync, fsync of directories. The daemon is killed at a random moment; what is there after the
next mount must fit the model, then everything goes on from it. Some cuts hit the recovery itself. The volume must check clean
after each cut.

The operations follow from the seed; with one worker and `--between` (cuts between operations only) all of a run does.
"""

import argparse
import errno
import os
import random
import sys
import threading
import time
import traceback

from model import Node, Tree
from syscalls import EXCHANGE, KEEP_SIZE, PUNCH_HOLE, fallocate, rename2
from volume import SetUpError, Volume, clean_up_on_signals

FILE_BYTES_MAX = 1_500_000
FILES_MAX = 40
# What a call may answer once the daemon is dead.
DEAD = {errno.ENOTCONN, errno.ECONNABORTED, errno.ECANCELED, errno.EIO, errno.EINTR}


class PowerIsOff(Exception):
    pass


class Worker:
    """One thread with a tree and a model of its own."""

    def __init__(self, volume, name, seed, backend):
        self.volume, self.name = volume, name
        self.random = random.Random(seed)
        self.tree = Tree()
        self.others = []
        self.next_name = 0
        self.covers_all = backend == "syncline"
        self.problem = None
        self.operations = 0
        self.syncs = 0
        self.refused = 0
        self.sync_share = 0.4
        self.large = 100_000
    def real(self, path=""):
        return os.path.join(self.volume.top, self.name, path) if path else os.path.join(self.volume.top, self.name)

    def call(self, function, *arguments):
        """The real operation; the power may go off in it."""
        try:
            return function(*arguments)
        except OSError as error:
            if error.errno in DEAD:
                raise PowerIsOff from error
            raise

    def never_full(self, function, *arguments):
        """A sync or a removal: a full volume is no excuse."""
        try:
            return self.call(function, *arguments)
        except OSError as error:
            raise AssertionError(f"{function.__name__}: {error}") from error

    def metadata(self, function, *arguments):
        """A namespace operation that the model has already done."""
        self.tree.begin()
        removal = function in (os.unlink, os.rmdir)
        (self.never_full if removal else self.call)(function, *arguments)
        self.tree.returned_now()

    # Choices.

    def fresh_path(self):
        self.next_name += 1
        name = f"{self.random.choice('abc')}{self.next_name}"
        directory = self.random.choice(["", *self.tree.paths("dir")])
        return f"{directory}/{name}".lstrip("/")

    def some(self, *kinds):
        paths = [p for kind in kinds for p in self.tree.paths(kind)]
        return self.random.choice(paths) if paths else None

    def bytes_of(self, length):
        """No two writes alike, no page like its neighbour."""
        return self.random.randbytes(length)

    # Operations. Each is a pair of a change to the model and the same call on the mount.

    def create(self):
        if len(self.tree.paths("file")) >= FILES_MAX:
            return self.unlink()
        path = self.fresh_path()
        parent, name = self.tree.parent(path)
        node = parent.entries[name] = Node("file", 0o644)
        self.tree.begin()
        handle = self.call(os.open, self.real(path), os.O_CREAT | os.O_EXCL | os.O_RDWR, 0o644)
        self.tree.returned_now()
        try:
            if self.random.random() < 0.8:
                self.write_to(node, handle, 0, self.random.choice([10, 3000, 4096, 20_000, 70_000, self.large]))
            if self.random.random() < self.sync_share:
                self.sync(node, handle)
        finally:
            self.close(handle)

    def close(self, handle):
        try:
            os.close(handle)
        except OSError as error:
            if error.errno not in DEAD:
                raise

    def opened(self, path):
        return self.call(os.open, self.real(path), os.O_RDWR)

    def write_to(self, node, handle, at, length):
        data = self.bytes_of(length)
        old = node.content()
        node.append_version(old[:at].ljust(at, b"\0") + data + old[at + length :])
        done = 0
        try:
            while done < length:
                # A short write is followed by the error: the power went off in it, or the volume is full.
                done += self.call(os.pwrite, handle, data[done:], at + done)
        except OSError:
            self.look_again(node, handle)
            raise

    def look_again(self, node, handle):
        """After a refused write the file holds what it holds: that is the newest version."""
        size = self.call(os.fstat, handle).st_size
        node.append_version(self.call(os.pread, handle, size, 0))

    def write(self):
        path = self.some("file")
        if path is None:
            return
        node = self.tree.lookup(path)
        handle = self.opened(path)
        try:
            for _ in range(self.random.choice([1, 1, 3])):
                size = len(node.content())
                at = self.random.choice([0, size, self.random.randrange(size + 1), min(size + 10_000, FILE_BYTES_MAX)])
                length = self.random.choice([1, 100, 4096, 8192, 30_000, self.large])
                if at + length <= FILE_BYTES_MAX:
                    self.write_to(node, handle, at, length)
            if self.random.random() < self.sync_share:
                self.sync(node, handle)
        finally:
            self.close(handle)

    def sync(self, node, handle):
        version = len(node.versions) - 1
        # Only calls that have returned count, and other workers go on meanwhile.
        marks = [(tree, tree.returned) for tree in self.covered_trees()]
        self.never_full(self.random.choice([os.fsync, os.fdatasync]), handle)
        if not self.covers_all:
            # Other filesystems promise less for an fsync of a file that has not changed.
            os.sync()
        self.tree.synced(node, version)
        for tree, returned in marks:
            tree.cover(returned)
        self.syncs += 1

    def covered_trees(self):
        return [self.tree, *(worker.tree for worker in self.others)]

    def sync_file(self):
        path = self.some("file")
        if path is None:
            return
        handle = self.opened(path)
        try:
            self.sync(self.tree.lookup(path), handle)
        finally:
            self.close(handle)

    def sync_directory(self):
        path = self.some("dir") or ""
        handle = self.call(os.open, self.real(path), os.O_RDONLY)
        marks = [(tree, tree.returned) for tree in self.covered_trees()]
        try:
            self.never_full(os.fsync, handle)
            if not self.covers_all:
                os.sync()
        finally:
            self.close(handle)
        for tree, returned in marks:
            tree.cover(returned)

    def truncate(self):
        path = self.some("file")
        if path is None:
            return
        node = self.tree.lookup(path)
        old = node.content()
        size = self.random.choice([0, self.random.randrange(len(old) + 1), self.random.randrange(FILE_BYTES_MAX)])
        node.append_version(old[:size].ljust(size, b"\0"))
        handle = self.opened(path)
        try:
            self.call(os.ftruncate, handle, size)
        except OSError:
            self.look_again(node, handle)
            raise
        finally:
            self.close(handle)

    def punch(self):
        path = self.some("file")
        if path is None or not self.tree.lookup(path).content():
            return
        node = self.tree.lookup(path)
        old = node.content()
        at = self.random.randrange(len(old))
        length = self.random.choice([100, 4096, 20_000])
        end = min(len(old), at + length)
        node.append_version(old[:at] + bytes(end - at) + old[end:])
        handle = self.opened(path)
        try:
            self.call(fallocate, handle, KEEP_SIZE | PUNCH_HOLE, at, length)
        except OSError:
            self.look_again(node, handle)
            raise
        finally:
            self.close(handle)

    def unlink(self):
        path = self.some("file", "link")
        if path is None:
            return
        parent, name = self.tree.parent(path)
        del parent.entries[name]
        self.metadata(os.unlink, self.real(path))

    def link(self):
        path = self.some("file")
        if path is None:
            return
        new = self.fresh_path()
        parent, name = self.tree.parent(new)
        parent.entries[name] = self.tree.lookup(path)
        self.metadata(os.link, self.real(path), self.real(new))

    def symlink(self):
        path = self.fresh_path()
        parent, name = self.tree.parent(path)
        target = "t" * self.random.choice([1, 50, 500])
        parent.entries[name] = Node("link", 0o777, target)
        self.metadata(os.symlink, target, self.real(path))

    def mkdir(self):
        if len(self.tree.paths("dir")) > 8:
            return self.rmdir()
        path = self.fresh_path()
        parent, name = self.tree.parent(path)
        parent.entries[name] = Node("dir", 0o755)
        self.metadata(os.mkdir, self.real(path), 0o755)

    def rmdir(self):
        empty = [p for p in self.tree.paths("dir") if not self.tree.lookup(p).entries]
        if not empty:
            return
        path = self.random.choice(empty)
        parent, name = self.tree.parent(path)
        del parent.entries[name]
        self.metadata(os.rmdir, self.real(path))

    def rename(self):
        """To a new name, or over an existing file."""
        path = self.some("file", "dir", "link")
        if path is None:
            return
        new = self.fresh_path()
        over = self.random.random() < 0.4 and self.tree.lookup(path).kind == "file"
        if over:
            new = self.some("file")
        if new == path or (new + "/").startswith(path + "/"):
            return
        node = self.tree.lookup(path)
        parent, name = self.tree.parent(new)
        if over and parent.entries[name] is node:
            # Two links of one inode: rename does nothing.
            self.call(os.rename, self.real(path), self.real(new))
            return
        old_parent, old_name = self.tree.parent(path)
        del old_parent.entries[old_name]
        parent.entries[name] = node
        if over:
            # C3: whoever sees this rename sees the source's data as of now.
            node.floors.append((self.tree.begun + 1, len(node.versions) - 1))
        self.metadata(os.rename, self.real(path), self.real(new))

    def exchange(self):
        a, b = self.some("file", "dir", "link"), self.some("file", "dir", "link")
        if a is None or a == b or (a + "/").startswith(b + "/") or (b + "/").startswith(a + "/"):
            return
        (parent_a, name_a), (parent_b, name_b) = self.tree.parent(a), self.tree.parent(b)
        node_a, node_b = parent_a.entries[name_a], parent_b.entries[name_b]
        parent_a.entries[name_a], parent_b.entries[name_b] = node_b, node_a
        self.metadata(rename2, self.real(a), self.real(b), EXCHANGE)

    def chmod(self):
        path = self.some("file", "dir")
        if path is None:
            return
        mode = self.random.choice([0o600, 0o640, 0o644, 0o700, 0o755])
        self.tree.lookup(path).mode = mode
        self.metadata(os.chmod, self.real(path), mode)

    def xattr(self):
        path = self.some("file", "dir")
        if path is None:
            return
        node = self.tree.lookup(path)
        name = f"user.{self.random.randrange(3)}"
        if name in node.xattrs and self.random.random() < 0.4:
            del node.xattrs[name]
            self.metadata(os.removexattr, self.real(path), name)
            return
        value = self.bytes_of(self.random.choice([0, 10, 300, 1500]))
        node.xattrs[name] = value
        self.metadata(os.setxattr, self.real(path), name, value)

    def attempt(self, operation):
        try:
            operation(self)
        except OSError as error:
            if error.errno != errno.ENOSPC:
                raise
            self.refused += 1
            if self.tree.begun > self.tree.returned:
                self.tree.undo()

    OPERATIONS = (
        [create] * 6 + [write] * 8 + [sync_file] * 3 + [sync_directory] + [truncate] * 2 + [punch] + [unlink] * 3 + [link] * 2
        + [symlink] + [mkdir] * 2 + [rmdir] + [rename] * 5 + [exchange] + [chmod] + [xattr] * 2
    )

    def run(self, stop, limit):
        # Some rounds sync much, some hardly; some write large pieces.
        self.sync_share = self.random.choice([0.0, 0.05, 0.4, 0.8])
        self.large = self.random.choice([70_000, 200_000, 1_000_000])
        no_syncs = self.sync_share == 0
        try:
            for _ in range(limit):
                if stop.is_set():
                    return
                operation = self.random.choice(self.OPERATIONS)
                if no_syncs and operation in (Worker.sync_file, Worker.sync_directory):
                    continue
                self.attempt(operation)
                self.operations += 1
        except PowerIsOff:
            pass
        except Exception as error:
            self.problem = f"{self.name}: {type(error).__name__}: {error}\n{traceback.format_exc(limit=-3)}"


def one_round(volume, workers, choose, between):
    """Runs all workers and cuts the power; the volume is unmounted afterwards."""
    stop = threading.Event()
    limit = choose.choice([20, 100, 400]) if between else 1_000_000
    threads = [threading.Thread(target=worker.run, args=(stop, limit)) for worker in workers]
    for thread in threads:
        thread.start()
    if between:
        for thread in threads:
            thread.join()
    else:
        time.sleep(choose.choice([0.005, 0.05, 0.2, 0.6]) * choose.random())
        if volume.backend != "syncline":
            # A shutdown needs a quiet moment: its ioctl is no kill.
            stop.set()
            for thread in threads:
                thread.join()
        else:
            volume.daemon.kill()
            for thread in threads:
                thread.join()
    volume.cut(kill=between)


def mount_after_cut(volume, choose):
    options = choose.choice(["commit=3600", "commit=1", "commit=0.02", "commit=0.02,memory=16M"])
    # Recovery may be cut as well, at any point of it.
    while volume.backend == "syncline" and choose.random() < 0.2:
        volume.mount_interrupted(options, choose.random() * 0.03)
    volume.mount(options)


def verify_all(volume, workers):
    numbers = []
    for worker in workers:
        try:
            begun, covered = worker.tree.begun, worker.tree.covered
            numbers.append((covered, worker.tree.verify(worker.real()), begun))
        except AssertionError as error:
            raise AssertionError(f"tree {worker.name}: {error}") from error
    return numbers


def main():
    parser = argparse.ArgumentParser(description="Random power cuts through the mount.")
    parser.add_argument("--cuts", type=int, default=30)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--workers", type=int, default=3)
    parser.add_argument("--size", type=int, default=96, metavar="MIB", help="size of the volume; 12 is always full")
    parser.add_argument("--journal", default="1M", metavar="SIZE")
    parser.add_argument("--between", action="store_true", help="cut between operations only: replays exactly with one worker")
    parser.add_argument("--backend", default="syncline", choices=["syncline", "ext4"])
    parser.add_argument("--scratch", default=os.environ.get("SCRATCH", "/var/tmp"))
    parser.add_argument("--keep", action="store_true", help="keep the image of a failure")
    arguments = parser.parse_args()
    try:
        volume = Volume(arguments.backend, arguments.scratch, journal=arguments.journal, mebibytes=arguments.size)
    except SetUpError as error:
        print(f"skip  random cuts: {error}\n0 passed, 0 failed, 1 skipped")
        return 0
    return run(volume, arguments)


def run(volume, arguments):
    os.umask(0o022)
    clean_up_on_signals()
    choose = random.Random(arguments.seed)
    passed, begun = 0, time.monotonic()
    workers = [Worker(volume, f"w{n}", arguments.seed * 1000 + n, arguments.backend) for n in range(arguments.workers)]
    for worker in workers:
        worker.others = [other for other in workers if other is not worker]
    failed = 0
    try:
        volume.format()
        volume.mount()
        for worker in workers:
            os.mkdir(worker.real())
        volume.sync_all()
        for cut in range(arguments.cuts):
            one_round(volume, workers, choose, arguments.between)
            if problems := [worker.problem for worker in workers if worker.problem]:
                raise AssertionError(problems[0])
            mount_after_cut(volume, choose)
            found = verify_all(volume, workers)
            if choose.random() < 0.5:
                volume.unmount()
                volume.check()
                mount_after_cut(volume, choose)
            passed += 1
            if os.environ.get("VERBOSE"):
                print(f"cut {cut}: " + ", ".join(f"{c} <= {n} <= {b}" for c, n, b in found), flush=True)
        volume.unmount()
        volume.check()
    except Exception as error:
        failed = 1
        print(f"FAIL  random cuts: cut {passed + 1}: {str(error)[:1500]}")
        if not isinstance(error, AssertionError):
            traceback.print_exc()
        between = " --between" if arguments.between else ""
        print(f"      again: tests/crash/random_cuts.py --cuts {arguments.cuts} --seed {arguments.seed} "
              f"--workers {arguments.workers} --size {arguments.size} --journal {arguments.journal}{between}")
        if arguments.keep:
            volume.abandon()
            print(f"      kept: {volume.work}")
            os._exit(1)
    finally:
        volume.destroy()
    operations = sum(worker.operations for worker in workers)
    syncs = sum(worker.syncs for worker in workers)
    refused = sum(worker.refused for worker in workers)
    print(f"random cuts (seed {arguments.seed}) in {time.monotonic() - begun:.0f} s, {operations} operations, {syncs} syncs, "
          f"{refused} times no space: "
          f"{passed} passed, {failed} failed, 0 skipped")
    return failed


if __name__ == "__main__":
    sys.exit(main())
