#!/usr/bin/env python3
"""How many bytes are uploaded, and how many requests made, for what programs write: counts, no times.

usage: uploaded.py [FOLDER]     FOLDER for images, store and mount (default: a new one below /var/tmp)

Needs root, /dev/fuse, and cc and make for the build. SYNCLINE is the command under test. Each workload has a volume of
its own that is shipped to a folder; the figures are those of its mount, until everything counts.
"""

import json
import os
import sqlite3
import subprocess
import sys
import tempfile
import time

SYNCLINE = os.environ["SYNCLINE"]


def run(*words):
    done = subprocess.run([SYNCLINE, *words], capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise SystemExit(f"uploaded: {' '.join(words)}: {done.stderr}")
    return done.stdout


def appends(mount):
    with open(f"{mount}/log", "wb") as file:
        for _ in range(2000):
            file.write(os.urandom(4096))
            file.flush()
            os.fsync(file.fileno())
    return 2000 * 4096


def small_appends(mount):
    with open(f"{mount}/log", "wb") as file:
        for number in range(2000):
            file.write(f"{number:99}\n".encode())
            file.flush()
            os.fsync(file.fileno())
    return 2000 * 100


def inserts(mount):
    base = sqlite3.connect(f"{mount}/base.db")
    base.execute("pragma journal_mode=wal")
    base.execute("pragma synchronous=full")
    base.execute("create table t(id integer primary key, text)")
    for _ in range(2000):
        base.execute("insert into t(text) values(?)", (os.urandom(100).hex(),))
        base.commit()
    base.close()
    return 2000 * 200


def build(mount):
    for number in range(150):
        with open(f"{mount}/part{number}.c", "w", encoding="ascii") as file:
            file.write(f"#include <stdio.h>\nint part{number}(int x) {{ printf(\"%d\\n\", x); return x * {number}; }}\n")
    with open(f"{mount}/main.c", "w", encoding="ascii") as file:
        file.write("int part1(int); int main(void) { return part1(0); }\n")
    with open(f"{mount}/Makefile", "w", encoding="ascii") as file:
        file.write("all: $(patsubst %.c,%.o,$(wildcard *.c))\n\tcc -g -o program $^\n")
    subprocess.run(["make", "-s", "-C", mount], check=True)
    return sum(os.path.getsize(os.path.join(mount, name)) for name in os.listdir(mount))


def measure(folder, name, work):
    image, mount, store = (os.path.join(folder, f"{name}.{what}") for what in ("img", "mount", "store"))
    os.makedirs(mount)
    url = f"file://{store}"
    run("mkfs", "--quiet", "--size", "1G", image)
    run("replica", "init", url, image)
    run("mount", "-o", f"replica={url},log={folder}/{name}.log", image, mount)
    try:
        told = work(mount)
        end = time.monotonic() + 120
        while True:
            stats = json.loads(run("stats", "--json", mount))
            replica = stats["replica"]
            if replica["lag_ms"] == 0 and replica["state"] == "streaming":
                break
            if time.monotonic() > end:
                raise SystemExit(f"uploaded: {name} is not shipped: {replica}")
            time.sleep(0.2)
    finally:
        run("umount", mount)
    return told, replica


def main():
    folder = sys.argv[1] if len(sys.argv) > 1 else tempfile.mkdtemp(prefix="syncline-uploaded.", dir="/var/tmp")
    print("| workload | written | uploaded | for each byte | units | requests |\n|---|---|---|---|---|---|")
    workloads = {
        "2,000 appends of 4 KiB, each with an fsync": appends,
        "2,000 appends of 100 bytes, each with an fsync": small_appends,
        "2,000 inserts of 200 bytes into SQLite (WAL, full)": inserts,
        "a build of 151 C files": build,
    }
    for number, (name, work) in enumerate(workloads.items()):
        told, replica = measure(folder, f"work{number}", work)
        uploaded = replica["uploaded_bytes"]
        print(f"| {name} | {told} | {uploaded} | {uploaded / told:.1f} | {replica['units']} | {replica['requests']} |")


main()
