#!/usr/bin/env python3
"""Power cuts while snapshots are deleted and taken apart, on a mount.

usage: tests/crash/deletions.py [--cuts N] [--seed S] [--size MIB]

One thread makes snapshots of a volume of version 2, changes files between them and goes on changing them while a snapshot is
deleted. The daemon is killed at a random moment behind the beginning of a deletion, which goes on in the background for about a
second; some cuts hit the recovery. After the next mount each snapshot that was made and not deleted is there, and shows every
file as it was; one whose deletion had returned is gone; files that were synced are as they were. The volume must check clean, and
in the end, with all snapshots deleted, as much is free as before the first one.
"""

import argparse
import os
import random
import sys
import threading
import time
import traceback

from random_cuts import DEAD, PowerIsOff, mount_after_cut
from volume import SetUpError, Volume, clean_up_on_signals, run

FILES = 400
DIRECTORIES = 8
SNAPSHOTS_MAX = 5
# How long a deletion goes on, about.
SECONDS = 1.5
# Blocks that the tables of a volume may take more or less of.
TABLES = 64


class Keeper:
    """The volume, and what has to be there."""

    def __init__(self, volume, seed):
        self.volume = volume
        self.random = random.Random(seed)
        self.files = {}
        # Changed since all was synced: such a file may be old, new, or in between after a cut.
        self.dirty = set()
        # What each snapshot shows; `None` while the call that makes or deletes it has not returned.
        self.snapshots = {}
        self.making = self.deleting = None
        self.names = 0
        self.made = self.deleted = self.cut_amid = 0

    def call(self, function, *arguments):
        try:
            return function(*arguments)
        except OSError as error:
            if error.errno in DEAD:
                raise PowerIsOff from error
            raise

    def content(self):
        return self.random.randbytes(self.random.choice([300, 4096, 9000, 40_000]))

    def write(self, name):
        content = self.content()
        self.dirty.add(name)
        self.call(self.volume.write, name, content)
        self.files[name] = content

    def fill(self):
        for number in range(DIRECTORIES):
            os.mkdir(self.volume.path(f"d{number}"))
        for number in range(FILES):
            self.write(f"d{number % DIRECTORIES}/{number:04}-{'n' * self.random.randrange(80)}")
        self.sync()

    def sync(self):
        self.call(self.volume.sync_all)
        self.dirty.clear()

    def change(self):
        for _ in range(self.random.choice([1, 5, 30])):
            name = self.random.choice(list(self.files))
            if self.random.random() < 0.15:
                self.dirty.add(name)
                self.call(os.unlink, self.volume.path(name))
                del self.files[name]
                self.write(f"{name.partition('-')[0]}-{'m' * self.random.randrange(80)}")
            else:
                self.write(name)
        if self.random.random() < 0.3:
            self.sync()

    def make(self):
        self.names += 1
        name = f"s{self.names}"
        self.making = (name, dict(self.files))
        self.call(os.mkdir, self.volume.path(f".snapshots/{name}"))
        self.snapshots[name] = self.making[1]
        self.making = None
        self.made += 1

    def delete(self, name):
        self.deleting = name
        self.call(os.rmdir, self.volume.path(f".snapshots/{name}"))
        del self.snapshots[name]
        self.deleting = None
        self.deleted += 1

    def work(self):
        """Until the power is off. The cut comes some time behind the beginning of a deletion."""
        timer = threading.Timer(self.random.random() * SECONDS, self.volume.daemon.kill)
        try:
            while len(self.snapshots) < 2 or len(self.snapshots) < SNAPSHOTS_MAX and self.random.random() < 0.6:
                self.change()
                self.make()
            if self.random.random() < 0.4:
                # Whoever has read it lets it go.
                self.verify_one(self.random.choice(list(self.snapshots)))
            timer.start()
            self.delete(self.random.choice(list(self.snapshots)))
            while True:
                self.change()
                if len(self.snapshots) < SNAPSHOTS_MAX and self.random.random() < 0.2:
                    self.make()
                if len(self.snapshots) > 1 and self.random.random() < 0.2:
                    self.delete(self.random.choice(list(self.snapshots)))
        except PowerIsOff:
            pass
        finally:
            if timer.ident:
                timer.join()
            timer.cancel()

    def verify_one(self, name):
        for file, content in self.snapshots[name].items():
            found = self.call(self.volume.read, f".snapshots/{name}/{file}")
            assert found == content, f"snapshot {name}: {file} is not what it was"
        shown = sum(len(self.call(self.volume.list, f".snapshots/{name}/d{n}")) for n in range(DIRECTORIES))
        wanted = len(self.snapshots[name])
        assert shown == wanted, f"snapshot {name} shows {shown} files, not {wanted}"

    def verify(self):
        there = set(self.volume.list(".snapshots"))
        if self.making:
            name, files = self.making
            if name in there:
                self.snapshots[name] = files
        if self.deleting and self.deleting not in there:
            del self.snapshots[self.deleting]
        self.making = self.deleting = None
        assert there == set(self.snapshots), f"the snapshots are {sorted(there)}, not {sorted(self.snapshots)}"
        for name in self.snapshots:
            self.verify_one(name)
        for name in [name for name in self.files if name not in self.dirty]:
            assert self.volume.read(name) == self.files[name], f"{name} was synced, and is not what it was"
        # What was not synced is what it is.
        for name in self.dirty:
            self.files.pop(name, None)
        for number in range(DIRECTORIES):
            for name in self.volume.list(f"d{number}"):
                name = f"d{number}/{name}"
                if name not in self.files:
                    self.files[name] = self.volume.read(name)
        self.sync()

    def check(self):
        run(self.volume.syncline, "check", "--all", self.volume.image)

    def free(self):
        """Blocks that are free once everything that was deleted has come back."""
        before = -1
        while True:
            self.volume.sync_all()
            found = os.statvfs(self.volume.top).f_bfree
            if found == before:
                return found
            before = found
            time.sleep(2)


def cuts(keeper, arguments):
    volume, choose = keeper.volume, keeper.random
    passed = 0
    for cut in range(arguments.cuts):
        keeper.work()
        volume.cut(kill=False)
        trees = run(volume.syncline, "inspect", "trees", volume.image, codes=(0, 1, 4))
        keeper.cut_amid += "delet" in trees
        mount_after_cut(volume, choose)
        keeper.verify()
        if choose.random() < 0.3:
            volume.unmount()
            keeper.check()
            mount_after_cut(volume, choose)
        passed = cut + 1
        yield passed


def main():
    parser = argparse.ArgumentParser(description="Power cuts through the mount while snapshots are deleted.")
    parser.add_argument("--cuts", type=int, default=20)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--size", type=int, default=128, metavar="MIB", help="size of the volume")
    parser.add_argument("--scratch", default=os.environ.get("SCRATCH", "/var/tmp"))
    arguments = parser.parse_args()
    try:
        volume = Volume("syncline", arguments.scratch, journal="1M", mebibytes=arguments.size, version=2)
    except SetUpError as error:
        print(f"skip  cuts in deletions: {error}\n0 passed, 0 failed, 1 skipped")
        return 0
    os.umask(0o022)
    clean_up_on_signals()
    keeper = Keeper(volume, arguments.seed)
    passed, failed, begun = 0, 0, time.monotonic()
    try:
        volume.format()
        volume.mount("commit=1")
        keeper.fill()
        for passed in cuts(keeper, arguments):
            pass
        # With the files away as well, what is left is what a volume takes at least.
        for name in list(keeper.snapshots):
            keeper.delete(name)
        for name in keeper.files:
            os.unlink(volume.path(name))
        free = keeper.free()
        volume.unmount()
        keeper.check()
        volume.format()
        volume.mount("commit=1")
        fresh = keeper.free()
        volume.unmount()
        assert free >= fresh - TABLES, f"{fresh - free} blocks are lost"
    except Exception as error:
        failed = 1
        print(f"FAIL  cuts in deletions: cut {passed + 1}: {str(error)[:1500]}")
        if not isinstance(error, AssertionError):
            traceback.print_exc()
        print(f"      again: tests/crash/deletions.py --cuts {arguments.cuts} --seed {arguments.seed} --size {arguments.size}")
    finally:
        volume.destroy()
    print(f"cuts in deletions (seed {arguments.seed}) in {time.monotonic() - begun:.0f} s, {keeper.made} snapshots made, "
          f"{keeper.deleted} deleted, {keeper.cut_amid} cuts with a deletion under way: "
          f"{passed} passed, {failed} failed, 0 skipped")
    return failed


if __name__ == "__main__":
    sys.exit(main())
