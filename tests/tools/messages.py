#!/usr/bin/env python3
"""Counts the messages that common sequences cost on a mount of Syncline: messages.py COMMAND [MOUNT-OPTIONS ...]

COMMAND is the program `syncline`. For each list of options a volume in /var/tmp is made, mounted, used and removed; the counts are
those of `syncline stats`, the times (microseconds for one sequence, caller included) mean something on a quiet machine only.
Needs root; dbench is part of it where it is installed.
"""

import json
import os
import random
import subprocess
import sys
import tempfile
import time

TIMES = 100


class Mount:
    def __init__(self, syncline, options):
        self.syncline, self.options = syncline, options
        self.work = tempfile.mkdtemp(prefix="syncline-messages.", dir="/var/tmp")
        self.image, self.top = f"{self.work}/image", f"{self.work}/mnt"
        os.mkdir(self.top)
        self.run("mkfs", "--quiet", "--size", "256M", self.image)
        self.run("mount", "-o", options, self.image, self.top)

    def run(self, *arguments):
        done = subprocess.run([self.syncline, *arguments], check=True, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
        return done.stdout

    def remount(self):
        self.run("umount", self.top)
        self.run("mount", "-o", self.options, self.image, self.top)

    def counts(self):
        # Over io_uring the daemon reads what is to be forgotten every 10 ms.
        time.sleep(0.05)
        return json.loads(self.run("stats", "--json", self.top))["messages"]

    def remove(self):
        subprocess.run([self.syncline, "umount", self.top], check=False)
        subprocess.run(["rm", "-rf", self.work], check=True)

    def path(self, name):
        return f"{self.top}/{name}"

    def measure(self, name, times, act):
        # Asking costs messages too: those are measured first.
        first, before = self.counts(), self.counts()
        own = {kind: before[kind] - first.get(kind, 0) for kind in before}
        began = time.perf_counter()
        act()
        took = (time.perf_counter() - began) / times * 1e6
        after = self.counts()
        cost = {kind: (after[kind] - before.get(kind, 0) - own.get(kind, 0)) / times for kind in after}
        kinds = sorted((kind for kind in cost if round(cost[kind], 2) > 0), key=lambda kind: -cost[kind])
        parts = ", ".join(f"{kind} {cost[kind]:.2g}" for kind in kinds)
        print(f"{name:40} {sum(cost.values()):6.2f} {took:8.1f} us  {parts}")


def make(mount, prefix, sync):
    for number in range(TIMES):
        file = os.open(mount.path(f"{prefix}{number}"), os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o644)
        os.write(file, b"x" * 4096)
        if sync:
            os.fsync(file)
        os.close(file)


def replace(mount):
    for _ in range(TIMES):
        file = os.open(mount.path("config.new"), os.O_CREAT | os.O_WRONLY | os.O_TRUNC, 0o644)
        os.write(file, b"x" * 100)
        os.fsync(file)
        os.close(file)
        os.rename(mount.path("config.new"), mount.path("config"))


def overwrite(mount, then):
    file = os.open(mount.path("a0"), os.O_WRONLY)
    for _ in range(TIMES):
        os.pwrite(file, b"y" * 4096, 0)
        then(file)
    os.close(file)


def write_durably(mount, access):
    file = os.open(mount.path("a0"), access | os.O_DSYNC)
    for _ in range(TIMES):
        os.pwrite(file, b"y" * 4096, 0)
    os.close(file)


def stat(mount):
    for number in range(TIMES):
        os.stat(mount.path(f"a{number}"))


def read(mount):
    for number in range(TIMES):
        file = os.open(mount.path(f"a{number}"), os.O_RDONLY)
        os.read(file, 8192)
        os.close(file)


def list_with_attributes(mount):
    with os.scandir(mount.top) as entries:
        for entry in entries:
            entry.stat()


def tree(work, directories, files):
    """An archive of small files, log-normal in size."""
    sizes = random.Random(1)
    top = f"{work}/tree"
    for number in range(directories):
        os.makedirs(f"{top}/d{number}")
    for number in range(files):
        with open(f"{top}/d{number % directories}/f{number}", "wb") as file:
            file.write(os.urandom(min(int(sizes.lognormvariate(8.6, 1.2)) + 1, 500_000)))
    subprocess.run(["tar", "cf", f"{work}/tree.tar", "-C", top, "."], check=True)


def trees(mount):
    files = 1000
    tree(mount.work, 50, files)
    os.mkdir(mount.path("tree"))

    def run(*words):
        subprocess.run([*words], check=False, stdout=subprocess.DEVNULL)

    def measure(name, *words):
        mount.measure(f"{name}, for each file", files, lambda: run(*words))

    first, second = mount.path("tree"), mount.path("copy")
    measure("tar x", "tar", "xf", f"{mount.work}/tree.tar", "-C", first)
    measure("find behind it", "find", first, "-size", "0")
    measure("grep -r behind it", "grep", "-r", "not to be found", first)
    measure("grep -r again", "grep", "-r", "not to be found", first)
    measure("cp -a", "cp", "-a", first, second)
    measure("rm -rf", "rm", "-rf", second)
    mount.remount()
    measure("find, nothing known", "find", first, "-size", "0")
    mount.remount()
    measure("grep -r, nothing known", "grep", "-r", "not to be found", first)
    mount.remount()
    measure("rm -rf, nothing known", "rm", "-rf", first)


def dbench(mount):
    before = mount.counts()
    told = subprocess.run(
        ["dbench", "-t", "3", "-D", mount.top, "1"], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    ).stdout
    after = mount.counts()
    rows = [line.split() for line in told.splitlines()]
    operations = sum(int(row[1]) for row in rows if len(row) == 4 and row[1].isdigit())
    cost = {kind: (after[kind] - before.get(kind, 0)) / max(operations, 1) for kind in after}
    parts = ", ".join(f"{kind} {cost[kind]:.3f}" for kind in sorted(cost, key=lambda kind: -cost[kind])[:12])
    print(f"{'dbench, for each of its operations':40} {sum(cost.values()):6.2f}  {parts}")


def count(syncline, options):
    print(f"\n{options}")
    mount = Mount(syncline, options)
    try:
        make(mount, "warm", True)
        mount.measure("create, write, fsync, close", TIMES, lambda: make(mount, "a", True))
        mount.measure("create, write, close", TIMES, lambda: make(mount, "b", False))
        mount.measure("replace by rename with fsync", TIMES, lambda: replace(mount))
        mount.measure("overwrite, fsync", TIMES, lambda: overwrite(mount, os.fsync))
        mount.measure("overwrite, fstat", TIMES, lambda: overwrite(mount, os.fstat))
        mount.measure("durable write, O_DSYNC, O_WRONLY", TIMES, lambda: write_durably(mount, os.O_WRONLY))
        mount.measure("durable write, O_DSYNC, O_RDWR", TIMES, lambda: write_durably(mount, os.O_RDWR))
        mount.measure("stat, the first after a write", TIMES, lambda: stat(mount))
        mount.measure("stat again", TIMES, lambda: stat(mount))
        mount.measure("open, read, close of what was written", TIMES, lambda: read(mount))
        mount.measure("open, read, close again", TIMES, lambda: read(mount))
        mount.measure("unlink of a known file", TIMES, lambda: [os.unlink(mount.path(f"b{n}")) for n in range(TIMES)])
        mount.measure("mkdir", TIMES, lambda: [os.mkdir(mount.path(f"d{n}")) for n in range(TIMES)])
        mount.remount()
        mount.measure("ls -l of 301 entries, nothing known", 1, lambda: list_with_attributes(mount))
        mount.measure("ls -l again", 1, lambda: list_with_attributes(mount))
        mount.remount()
        mount.measure("stat, nothing known", TIMES, lambda: stat(mount))
        trees(mount)
        if subprocess.run(["which", "dbench"], stdout=subprocess.DEVNULL, check=False).returncode == 0:
            dbench(mount)
    finally:
        mount.remove()


def main():
    if len(sys.argv) < 2:
        sys.exit(__doc__)
    for options in sys.argv[2:] or ["rw"]:
        count(sys.argv[1], options)


if __name__ == "__main__":
    main()
