#!/usr/bin/env python3
"""What replication costs, by the clock (docs/benchmarks.md): interleaved rounds, a floor in each, a table of medians.

usage: figures.py [--rounds N] [--json FILE] [--into DOCUMENT] [SECTION...]

SECTION: append, processor, restore, lazy, remote, nbd, rbd, lag; all of them unless some are named. With --json the
rounds are added to those that the file has. --rounds 0 measures nothing, and only makes the table. --into puts it
between the marks of a document, otherwise it is printed.

As root, on a machine that does nothing else. SYNCLINE is the command (built with the feature s3); VERSITY and
LITESTREAM are programs, which go installs into the target folder if they are not there; nbdkit, nbdfuse
(Debian's libnbd-bin) and Ceph (ceph-mon, ceph-mgr, ceph-osd, ceph-common) are the distribution's. What is missing is
said, and its section left out. SCRATCH (default /var/tmp) has the volumes, STORE (default /dev/shm) what is shipped, 4
GiB at most: a store on the volume's own disk would be measured with it.
"""

import argparse
import contextlib
import json
import os
import platform
import random
import re
import shutil
import signal
import sqlite3
import statistics
import subprocess
import sys
import tempfile
import time

from figures_lab import HERE, TABLE, Lab, Missing, Nbd, end, free_port, is_open, need, percentile, processor, run, syncs
from figures_lab import told, until

MIB = 1 << 20


def shuffled(words):
    return random.sample(list(words), len(words))


def append(lab):
    """Appends with fsync on a mount without and with a replica: at full speed, and one each 2 ms."""
    image = lab.filled("append.img", 512)
    figures = lab.floor()
    for kind in shuffled(("none", "none again", "folder", "folder on the volume's disk", "versitygw")):
        lab.syncline("mkfs", "--quiet", "--force", image)
        options = []
        if not kind.startswith("none"):
            url = lab.url({"folder on the volume's disk": "disk"}.get(kind, kind))
            lab.syncline("replica", "init", url, image)
            options = [f"replica={url}"]
        with lab.mounted(image, *options) as (directory, daemon):
            for speed, pause in ("full speed", 0.0), ("one each 2 ms", 0.002):
                before = processor(daemon.pid)
                took = syncs(lab, directory, 1, 5.0, pause)
                figures |= {f"{speed}, {kind}/{name}": value for name, value in took.items()}
                figures[f"{speed}, {kind}/cores"] = (processor(daemon.pid) - before) / 5.0
                if options:
                    lab.shipped(directory)
        lab.forget()
    for speed in "full speed", "one each 2 ms":
        for kind in "none again", "folder", "folder on the volume's disk", "versitygw":
            for part in "p50", "p99":
                ratio = figures[f"{speed}, {kind}/{part}"] / figures[f"{speed}, none/{part}"]
                figures[f"{speed}, {kind}/{part} to none"] = ratio
    return figures


def stream(path, speed, seconds):
    """Writes so many MB a second, or what goes, and syncs at the end: bytes and seconds."""
    file = os.open(path, os.O_WRONLY | os.O_CREAT)
    begun = time.perf_counter()
    written = 0
    while (now := time.perf_counter()) < begun + seconds:
        if written > (now - begun) * speed * 1e6:
            time.sleep(0.001)
            continue
        # Each piece begins elsewhere, so no two are the same.
        at = written // MIB * 4099 % (len(TABLE) - MIB)
        written += os.write(file, memoryview(TABLE)[at : at + MIB])
    os.fsync(file)
    os.close(file)
    return written, time.perf_counter() - begun


def processor_time(lab):
    """What the daemon takes while 300 MB/s are written, and until all is shipped."""
    image = lab.filled("stream.img", 3072)
    figures = {}
    for kind in shuffled(("none", "folder", "versitygw")):
        lab.syncline("mkfs", "--quiet", "--force", image)
        options = []
        if kind != "none":
            url = lab.url(kind)
            lab.syncline("replica", "init", url, image)
            options = [f"replica={url}"]
        with lab.mounted(image, *options) as (directory, daemon):
            before, begun = processor(daemon.pid), time.perf_counter()
            written, wall = stream(f"{directory}/stream", 300, 6.0)
            behind = processor(daemon.pid)
            figures[f"{kind}/MB each s"] = written / 1e6 / wall
            figures[f"{kind}/cores"] = (behind - before) / wall
            if options:
                lab.shipped(directory)
                figures[f"{kind}/shipped behind that, s"] = time.perf_counter() - begun - wall
                figures[f"{kind}/uploaded of written"] = lab.replica(directory)["uploaded_bytes"] / written
            # The last checkpoint is work of either.
            time.sleep(2.0)
            figures[f"{kind}/s for 300 MB"] = (processor(daemon.pid) - before) / written * 300e6
        lab.forget()
    for kind in "folder", "versitygw":
        for what in "cores", "s for 300 MB":
            figures[f"{kind}/more {what}"] = figures[f"{kind}/{what}"] - figures[f"none/{what}"]
    return figures


def restore(lab):
    """A volume with 1 GiB of random content comes back into an image."""
    large = f"{lab.work}/large"
    image = f"{lab.work}/restore.img"
    with open(large, "wb") as file:
        for _ in range(1024):
            file.write(os.urandom(MIB))
    lab.syncline("mkfs", "--quiet", "--force", "--size", "1200M", image)
    lab.syncline("import", "--quiet", image, large, "/")
    begun = time.perf_counter()
    back = f"{lab.work}/back.img"
    shutil.copyfile(large, back)
    with open(back, "rb+") as file:
        os.fsync(file.fileno())
    figures = {"a copy of the file, synced/MB each s": 2**30 / 1e6 / (time.perf_counter() - begun)}
    os.unlink(back)
    for kind in shuffled(("folder", "versitygw")):
        url = lab.url(kind)
        begun = time.perf_counter()
        lab.syncline("replica", "init", url, image)
        figures[f"{kind}/init, MB each s"] = 2**30 / 1e6 / (time.perf_counter() - begun)
        begun = time.perf_counter()
        before = os.times()
        lab.syncline("replica", "restore", url, back)
        figures[f"{kind}/MB each s"] = 2**30 / 1e6 / (time.perf_counter() - begun)
        after = os.times()
        figures[f"{kind}/processor, s"] = sum(after[2:4]) - sum(before[2:4])
        os.unlink(back)
    os.unlink(large)
    os.unlink(image)
    lab.forget()
    return figures


def make_large(lab, image):
    """A volume of 10 GiB: 1 GiB in one file, and 1 GiB in 10,000 files of a tree."""
    lab.syncline("mkfs", "--quiet", "--force", "--size", "10G", image)
    with lab.mounted(image) as (directory, _):
        with open(f"{directory}/one", "wb") as file:
            for number in range(1024):
                at = number * 4099 % (len(TABLE) - MIB)
                file.write(memoryview(TABLE)[at : at + MIB])
        for number in range(10000):
            folder = f"{directory}/tree/{number // 1000}/{number // 100 % 10}"
            os.makedirs(folder, exist_ok=True)
            with open(f"{folder}/{number}", "wb") as file:
                at = number * 1031 % (len(TABLE) - MIB)
                file.write(memoryview(TABLE)[at : at + 107374])


def lazy(lab):
    """From the command until a file of a clean volume of 10 GiB was read, each request 0 or 30 ms late."""
    image = f"{lab.work}/lazy.img"
    if not os.path.exists(image):
        make_large(lab, image)
        lab.lazy_url = lab.url("versitygw")
        lab.keeping = lab.gateway_that_keeps()
        begun = time.perf_counter()
        lab.syncline("replica", "init", lab.lazy_url, image)
        told(f"figures: the volume was shipped in {time.perf_counter() - begun:.0f} s")
    figures = {}
    server = os.environ["AWS_ENDPOINT_URL"]
    for late in shuffled((0, 30)):
        port = free_port()
        proxy = subprocess.Popen([sys.executable, f"{HERE}/late.py", *map(str, (port, lab.keeping, late))])
        directory, local = lab.folder(lab.fresh()), f"{lab.work}/local.img"
        os.environ["AWS_ENDPOINT_URL"] = f"http://127.0.0.1:{port}"
        try:
            until("the proxy listens", lambda port=port: is_open(port))
            asked = lab.asked()
            begun = time.perf_counter()
            lab.syncline("mount", "-o", f"log={directory}.log", "--local", local, lab.lazy_url, directory)
            mounted = time.perf_counter()
            figures[f"{late} ms late/requests of the mount"] = lab.asked() - asked
            with open(f"{directory}/tree/7/3/7345", "rb") as file:
                first = file.read()
            read = time.perf_counter()
            if first != TABLE[7345 * 1031 % (len(TABLE) - MIB) :][:107374]:
                raise RuntimeError("the first file is another one")
            figures |= {f"{late} ms late/mounted, s": mounted - begun, f"{late} ms late/first file, s": read - begun}
            with open(f"{directory}/tree/2/1/2100", "rb") as file:
                file.read()
            figures[f"{late} ms late/another file, s"] = time.perf_counter() - read
            lab.syncline("umount", directory)
        finally:
            os.environ["AWS_ENDPOINT_URL"] = server
            subprocess.run(["umount", "-l", directory], check=False, capture_output=True)
            end(proxy)
            for name in os.listdir(lab.work):
                if name.startswith("local.img"):
                    os.unlink(f"{lab.work}/{name}")
    return figures


def remote(lab):
    """ack=remote on versitygw, beside ack=local, with one process that appends and with 16."""
    image = lab.filled("append.img", 512)
    figures = lab.floor()
    for acknowledge in shuffled(("local", "remote")):
        lab.syncline("mkfs", "--quiet", "--force", image)
        url = lab.url("versitygw")
        lab.syncline("replica", "init", url, image)
        with lab.mounted(image, f"replica={url}", f"ack={acknowledge}") as (directory, _):
            for threads in 1, 16:
                took = syncs(lab, directory, threads, 4.0)
                figures |= {f"ack={acknowledge}, {threads} processes/{name}": value for name, value in took.items()}
        lab.forget()
    return figures


@contextlib.contextmanager
def exported(lab, name):
    """A file of 512 MiB by nbdkit: its socket."""
    path, place = lab.filled(f"{name}.raw", 512), f"{lab.work}/{name}.sock"
    with contextlib.suppress(FileNotFoundError):
        os.unlink(place)
    server = subprocess.Popen([need("nbdkit"), "--foreground", "--unix", place, "file", path])
    try:
        until("nbdkit listens", lambda: os.path.exists(place))
        yield place
    finally:
        end(server)


@contextlib.contextmanager
def ext4_of(lab, place):
    """ext4 on a loop device on nbdfuse's file: there is no other way to an export without a kernel module."""
    folder, directory = lab.folder(lab.fresh()), lab.folder(lab.fresh())
    fuse = subprocess.Popen([need("nbdfuse"), f"{folder}/nbd", "--unix", place])
    loop = None
    try:
        until("nbdfuse mounts", lambda: os.path.exists(f"{folder}/nbd"))
        loop = run(need("losetup"), "--find", "--show", "--direct-io=on", f"{folder}/nbd").strip()
        run(need("mkfs.ext4"), "-q", "-E", "nodiscard,lazy_itable_init=0,lazy_journal_init=0", loop)
        run("mount", loop, directory)
        yield directory
    finally:
        subprocess.run(["umount", directory], check=False, capture_output=True)
        if loop:
            subprocess.run([need("losetup"), "--detach", loop], check=False)
            time.sleep(0.5)
        subprocess.run(["umount", folder], check=False, capture_output=True)
        end(fuse)


def nbd(lab):
    """Appends with fsync on an export of nbdkit, beside a client that only writes and flushes, and ext4."""
    figures = lab.floor()
    with exported(lab, "bare") as place:
        client, took = Nbd(place), []
        for number in range(2000):
            before = time.perf_counter_ns()
            client.write(number * 4096, TABLE[:4096])
            client.flush()
            took.append((time.perf_counter_ns() - before) / 1000)
        figures |= {"write and flush/p50": statistics.median(took), "write and flush/p99": percentile(took, 0.99)}
        client.socket.close()
    for system in shuffled(("syncline", "ext4")):
        with exported(lab, system) as place, contextlib.ExitStack() as stack:
            if system == "ext4":
                directory = stack.enter_context(ext4_of(lab, place))
            else:
                lab.syncline("mkfs", "--quiet", "--force", f"nbd+unix:///?socket={place}")
                directory, _ = stack.enter_context(lab.mounted(f"nbd+unix:///?socket={place}"))
            for threads in 1, 16:
                took = syncs(lab, directory, threads, 4.0)
                figures |= {f"{system}, {threads} processes/{name}": value for name, value in took.items()}
    return figures


def cluster(lab):
    """Ceph on the loopback: the path of its configuration."""
    if not hasattr(lab, "conf"):
        for program in "ceph-mon", "ceph-mgr", "ceph-osd", "ceph", "rbd":
            need(program)
        place = f"{lab.work}/ceph"
        lab.ending.callback(run, f"{HERE}/ceph.sh", "down", place)
        lab.conf = run(f"{HERE}/ceph.sh", "up", place).strip()
        os.environ["CEPH_CONF"] = lab.conf
    return lab.conf


def rbd(lab):
    """Appends with fsync on an image of Ceph, beside rbd bench; and how long a take-over takes."""
    conf = cluster(lab)
    figures = lab.floor()
    name = lab.fresh()
    for image in f"{name}-bare", name:
        run("rbd", "create", "--size", "1024", f"rbd/{image}")
    for threads in 1, 16:
        bench = run("rbd", "bench", "--io-type", "write", "--io-size", "4K", "--io-threads", str(threads),
                    "--io-total", f"{max(threads, 2)}M", "--io-pattern", "seq", "--rbd-cache=false", f"rbd/{name}-bare")
        rate = float(re.search(r"ops/sec: ([0-9.]+)", bench)[1])
        row = f"rbd bench, {threads} threads"
        figures |= {f"{row}/rate": rate, f"{row}/mean": 1e6 * threads / rate}
    device = f"rbd:rbd/{name}?conf={conf}"
    lab.syncline("mkfs", "--quiet", device)
    with lab.mounted(device) as (directory, _):
        for threads in 1, 16:
            took = syncs(lab, directory, threads, 6.0)
            figures |= {f"syncline, {threads} processes/{part}": value for part, value in took.items()}
    # On one machine a mount asks who serves the same address; it must not find whoever is lost.
    elsewhere = f"{conf}.elsewhere"
    shutil.copyfile(conf, elsewhere)
    try:
        figures["take-over of a live owner/s"] = taken_over(lab, device, f"rbd:rbd/{name}?conf={elsewhere}")
    except (RuntimeError, OSError, subprocess.SubprocessError) as why:
        told(f"FAIL  figures rbd: no take-over: {why}")
    for image in f"{name}-bare", name:
        subprocess.run(["rbd", "rm", "--no-progress", f"rbd/{image}"], check=False, capture_output=True)
    return figures


def taken_over(lab, device, elsewhere):
    """From the command until a file that was synced has been read. The other owner is alive, and idle."""
    directory = lab.folder(lab.fresh())
    with lab.lost(device) as (other, daemon):
        syncs(lab, other, 1, 2.0)
        with open(f"{other}/last", "wb") as file:
            file.write(b"last")
            os.fsync(file.fileno())
        begun = time.perf_counter()
        lab.syncline("mount", "--take-over", elsewhere, directory, timeout=40)
        with open(f"{directory}/last", "rb") as file:
            if file.read() != b"last":
                raise RuntimeError("what was synced is not there")
        took = time.perf_counter() - begun
    lab.syncline("umount", directory, timeout=40)
    return took


def objects(folder):
    return sum(len(files) for _, _, files in os.walk(folder))


def committed(base, count):
    base.execute("insert into t(text) values(?)", (os.urandom(100).hex(),))
    base.commit()
    return count + 1


def database(path):
    base = sqlite3.connect(path)
    base.execute("pragma journal_mode=wal")
    base.execute("pragma synchronous=full")
    base.execute("create table t(id integer primary key, text)")
    base.commit()
    return base


def lags(base, folder, restored, settled, quiet):
    """Seconds from the return of a commit until there is a new object, and how many restores of then have the row."""
    took, whole, count = [], 0, 0
    for _ in range(10):
        settled()
        time.sleep(quiet + random.uniform(0.2, 1.2))
        settled()
        before = objects(folder)
        count = committed(base, count)
        begun = time.perf_counter()
        until("the commit is in the store", lambda before=before: objects(folder) > before, 20, 0.001)
        took.append(time.perf_counter() - begun)
        whole += restored() == count
    return {"p50, s": statistics.median(took), "most, s": max(took), "restores with it, of 10": whole}


def rows(path):
    base = sqlite3.connect(path)
    try:
        return base.execute("select count(*) from t").fetchone()[0]
    finally:
        base.close()


def our_lag(lab, interval, quiet):
    image = f"{lab.work}/lag.img"
    lab.syncline("mkfs", "--quiet", "--force", "--size", "64M", image)
    url = lab.url("versitygw")
    lab.syncline("replica", "init", url, image)
    back, out = f"{lab.work}/back.img", f"{lab.work}/lag.out"

    def restored():
        for path in back, out:
            if os.path.exists(path):
                shutil.rmtree(path) if os.path.isdir(path) else os.unlink(path)
        lab.syncline("replica", "restore", url, back)
        # The database with its log, which SQLite reads together.
        lab.syncline("export", "--quiet", back, "/", out)
        return rows(f"{out}/base.db")

    with lab.mounted(image, f"replica={url}", f"replica_interval={interval}") as (directory, _):
        base = database(f"{directory}/base.db")
        folder = f"{lab.store}/gateway/lab/{url.rpartition('/')[2]}"
        try:
            return lags(base, folder, restored, lambda: lab.shipped(directory), quiet)
        finally:
            base.close()


def litestreams_lag(lab, interval, quiet):
    program = os.environ.get("LITESTREAM", f"{lab.target}/litestream/litestream")
    if not os.access(program, os.X_OK):
        need("go")
        run("go", "install", "github.com/benbjohnson/litestream/cmd/litestream@latest",
            env={**os.environ, "GOBIN": os.path.dirname(program)}, timeout=1200)
    folder, name = lab.folder(lab.fresh()), lab.fresh()
    base = database(f"{folder}/base.db")
    with open(f"{folder}/litestream.yml", "w", encoding="ascii") as file:
        json.dump({"dbs": [{"path": f"{folder}/base.db", "monitor-interval": f"{interval}s", "replica": {
            "type": "s3", "bucket": "lab", "path": name, "endpoint": os.environ["AWS_ENDPOINT_URL"],
            "region": "us-east-1", "access-key-id": "lab", "secret-access-key": "laboratory", "force-path-style": True,
            "sync-interval": f"{interval}s"}}]}, file)
    # What is compacted later lies in other folders.
    store = f"{lab.store}/gateway/lab/{name}/0000"

    def settled():
        # Nothing new for an interval and a half.
        count, since = objects(store), time.monotonic()
        while time.monotonic() < since + 1.5 * interval:
            time.sleep(0.05)
            if objects(store) != count:
                count, since = objects(store), time.monotonic()

    def restored():
        back = f"{folder}/back.db"
        with contextlib.suppress(FileNotFoundError):
            os.unlink(back)
        run(program, "restore", "-config", f"{folder}/litestream.yml", "-o", back, f"{folder}/base.db")
        return rows(back)

    with open(f"{folder}/log", "ab") as log:
        server = subprocess.Popen([program, "replicate", "-config", f"{folder}/litestream.yml"], stdout=log, stderr=log)
    try:
        until("Litestream has begun", lambda: objects(store) > 0, 30)
        return lags(base, store, restored, settled, quiet)
    finally:
        base.close()
        end(server)


def lag(lab):
    """From a commit of SQLite until it is in the store, both with the same intervals."""
    lab.gateway()
    figures = lab.floor()
    for interval, quiet in (1, 0), (1, 2), (0.1, 0):
        for system, measure in shuffled((("syncline", our_lag), ("litestream", litestreams_lag))):
            took = measure(lab, interval, quiet)
            case = f"{system}, interval {interval} s" + (f", behind {quiet} s of quiet" if quiet else "")
            figures |= {f"{case}/{name}": value for name, value in took.items()}
    lab.forget()
    return figures


SECTIONS = {"append": append, "processor": processor_time, "restore": restore, "lazy": lazy, "remote": remote,
            "nbd": nbd, "rbd": rbd, "lag": lag}


def shown(values):
    """Median, and least and most where there is more than one."""
    three = statistics.median(values), min(values), max(values)
    median, least, most = (f"{value:,.0f}" if value >= 100 else f"{value:.3g}" for value in three)
    return median if len(values) == 1 else f"{median} ({least}-{most})"


def natural(name):
    return not name.startswith("floor"), [int(part) if part.isdigit() else part for part in re.split(r"(\d+)", name)]


def table(results):
    """One for each section: what stands before the last slash is a row, what is behind it a column."""
    lines = []
    for section, about in SECTIONS.items():
        rounds = results["rounds"].get(section, [])
        if not rounds:
            continue
        names = [name.rpartition("/")[::2] for name in rounds[0]]
        columns = list(dict.fromkeys(column for _, column in names))
        lines += [f"**{section}**, {len(rounds)} rounds. {about.__doc__}", "", f"| | {' | '.join(columns)} |"]
        lines.append("|" + "---|" * (len(columns) + 1))
        for row in sorted(dict.fromkeys(row for row, _ in names), key=natural):
            cells = [[each[f"{row}/{column}"] for each in rounds if f"{row}/{column}" in each] for column in columns]
            lines.append(f"| {row} | {' | '.join(shown(values) if values else '' for values in cells)} |")
        lines.append("")
    return "\n".join(lines)


def put(document, text):
    with open(document, encoding="utf-8") as file:
        before, mark, rest = file.read().partition("<!-- figures -->\n")
    _, end_mark, behind = rest.partition("<!-- end of figures -->")
    if not mark or not end_mark:
        raise SystemExit(f"figures: {document} has no marks <!-- figures --> and <!-- end of figures -->")
    with open(document, "w", encoding="utf-8") as file:
        file.write(f"{before}{mark}\n{text}\n{end_mark}{behind}")


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--json")
    parser.add_argument("--into")
    parser.add_argument("sections", nargs="*", choices=[*SECTIONS, []])
    options = parser.parse_args()
    results = {"machine": f"{platform.release()}, {os.cpu_count()} processors", "rounds": {}}
    if options.json and os.path.exists(options.json):
        with open(options.json, encoding="utf-8") as file:
            results = json.load(file)
    told(f"figures: load {os.getloadavg()[0]:.1f} when it begins")
    failed = False
    # Whoever ends it wants what it has started ended as well.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    with tempfile.TemporaryDirectory(prefix="syncline-figures.", dir=os.environ.get("SCRATCH", "/var/tmp")) as work, \
            tempfile.TemporaryDirectory(prefix="syncline-figures.", dir=os.environ.get("STORE", "/dev/shm")) as store:
        lab = Lab(work, store)
        with lab.ending:
            left_out = set()
            for number in range(options.rounds):
                for name in options.sections or SECTIONS:
                    if name in left_out:
                        continue
                    begun = time.monotonic()
                    try:
                        results["rounds"].setdefault(name, []).append(SECTIONS[name](lab))
                    except Missing as why:
                        told(f"skipped: figures {name}: {why}")
                        left_out.add(name)
                    except (RuntimeError, OSError, subprocess.SubprocessError) as why:
                        told(f"FAIL  figures {name}: {why}")
                        failed = True
                        left_out.add(name)
                    told(f"figures: {name}, round {number + 1}: {time.monotonic() - begun:.0f} s")
                    if options.json:
                        with open(options.json, "w", encoding="utf-8") as file:
                            json.dump(results, file, indent=1)
    text = table(results)
    if options.into:
        put(options.into, text)
    else:
        print(text)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
