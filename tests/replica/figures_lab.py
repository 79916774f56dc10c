"""What figures.py measures with: servers on the loopback, mounts, and clocks. See there."""

import contextlib
import json
import os
import shutil
import signal
import socket
import statistics
import struct
import subprocess
import sys
import time

BLOCK = 4096
HERE = os.path.dirname(os.path.abspath(__file__))
TABLE = os.urandom(16 << 20)
TICK = os.sysconf("SC_CLK_TCK")


class Missing(Exception):
    """Something that a section needs cannot be had."""


def run(*words, timeout=300, **more):
    done = subprocess.run(words, capture_output=True, text=True, check=False, timeout=timeout, **more)
    if done.returncode != 0:
        raise RuntimeError(f"{' '.join(map(str, words))}: {done.stderr.strip() or done.stdout.strip()}")
    return done.stdout


def need(program):
    found = shutil.which(program) or shutil.which(program, path="/usr/sbin:/sbin")
    if found is None:
        raise Missing(f"{program} is not installed")
    return found


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def until(what, true, seconds=60, pause=0.01):
    end = time.monotonic() + seconds
    while not true():
        if time.monotonic() > end:
            raise RuntimeError(f"not within {seconds} s: {what}")
        time.sleep(pause)


def is_open(port):
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


def percentile(values, part):
    values = sorted(values)
    return values[min(len(values) - 1, int(len(values) * part))]


def processor(pid):
    """Seconds of processor time of all threads of a process, those that have ended as well."""
    with open(f"/proc/{pid}/stat", encoding="ascii") as file:
        words = file.read().rpartition(")")[2].split()
    return (int(words[11]) + int(words[12])) / TICK


def appends(path, seconds, pause=0.0):
    """Microseconds of appends of 4 KiB, each with an fsync; the first of them are not told."""
    took = []
    file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    begun = due = time.perf_counter()
    number = 0
    while (now := time.perf_counter()) < begun + seconds:
        at = number * BLOCK % len(TABLE)
        content = TABLE[at : at + BLOCK]
        before = time.perf_counter_ns()
        os.write(file, content)
        os.fsync(file)
        took.append((time.perf_counter_ns() - before) / 1000)
        number += 1
        if pause:
            due = max(due + pause, now)
            time.sleep(max(0.0, due - time.perf_counter()))
    os.close(file)
    return took[len(took) // 20 :]


def together(count, work, folder):
    """The numbers that `count` processes return, in one list. Threads of one interpreter would wait for each other."""
    children = []
    for number in range(count):
        child = os.fork()
        if child == 0:
            code = 1
            try:
                with open(f"{folder}/part{number}", "w", encoding="ascii") as file:
                    json.dump(work(number), file)
                code = 0
            finally:
                os._exit(code)
        children.append(child)
    for child in children:
        if os.waitpid(child, 0)[1] != 0:
            raise RuntimeError("a process of those that append has failed")
    parts = []
    for number in range(count):
        with open(f"{folder}/part{number}", encoding="ascii") as file:
            parts += json.load(file)
    return parts


def syncs(lab, directory, threads, seconds, pause=0.0):
    """Median and 99th of a hundred in us, and syncs a second, of processes that each append to its own file."""
    begun = time.perf_counter()
    took = together(threads, lambda number: appends(f"{directory}/log{number}", seconds, pause), lab.work)
    wall = time.perf_counter() - begun
    return {"p50": statistics.median(took), "p99": percentile(took, 0.99), "rate": len(took) / 0.95 / wall}


class Nbd:
    """The least of a client: writes and flushes, one at a time."""

    def __init__(self, path):
        self.socket = socket.socket(socket.AF_UNIX)
        self.socket.connect(path)
        magic, option, flags = struct.unpack(">8s8sH", self.receive(18))
        if (magic, option) != (b"NBDMAGIC", b"IHAVEOPT"):
            raise RuntimeError("no NBD server")
        # No padding behind the answer; then the export without a name.
        self.socket.sendall(struct.pack(">I8sII", flags & 3, b"IHAVEOPT", 1, 0))
        self.receive(10 if flags & 2 else 134)

    def receive(self, length):
        got = b""
        while len(got) < length:
            more = self.socket.recv(length - len(got))
            if not more:
                raise RuntimeError("the NBD server has hung up")
            got += more
        return got

    def ask(self, kind, offset=0, content=b""):
        self.socket.sendall(struct.pack(">IHHQQI", 0x25609513, 0, kind, 0, offset, len(content)) + content)
        if struct.unpack(">IIQ", self.receive(16))[1] != 0:
            raise RuntimeError("the NBD server answers an error")

    def write(self, offset, content):
        self.ask(1, offset, content)

    def flush(self):
        self.ask(3)


class Lab:
    """One run: its folders, and what has to be ended."""

    def __init__(self, work, store):
        self.command = os.environ["SYNCLINE"]
        self.target = os.path.realpath(os.environ.get("CARGO_TARGET_DIR", f"{HERE}/../../target"))
        self.work, self.store = work, store
        self.versity = os.environ.get("VERSITY", f"{self.target}/versity/versitygw")
        self.port = None
        self.number = 0
        self.ending = contextlib.ExitStack()

    def syncline(self, *words, **more):
        return run(self.command, *words, **more)

    def start(self, *words, **more):
        """A server, ended by its process id."""
        with open(f"{self.work}/servers.log", "ab") as log:
            server = subprocess.Popen(words, stdout=log, stderr=log, **more)
        self.ending.callback(end, server)
        return server

    def fresh(self):
        """A name that nothing had yet."""
        self.number += 1
        return f"n{self.number}"

    def filled(self, name, mib):
        """A file whose blocks have all been written: a write to it changes nothing of the host's filesystem."""
        path = f"{self.work}/{name}"
        if not os.path.exists(path):
            with open(path, "wb") as file:
                for _ in range(mib):
                    file.write(bytes(1 << 20))
                os.fsync(file.fileno())
        return path

    def folder(self, name):
        path = f"{self.work}/{name}"
        os.makedirs(path, exist_ok=True)
        return path

    def gateway(self):
        """versitygw, whose bucket is a folder of `store`; the environment is then that of its clients."""
        if self.port:
            return
        versity = self.versity
        if not os.access(versity, os.X_OK):
            need("go")
            os.makedirs(os.path.dirname(versity), exist_ok=True)
            run("go", "install", "github.com/versity/versitygw/cmd/versitygw@latest",
                env={**os.environ, "GOBIN": os.path.dirname(versity)}, timeout=1200)
        for name in "gateway/lab", "side":
            os.makedirs(f"{self.store}/{name}")
        self.port = free_port()
        # Those of whoever calls have nothing to do with this.
        for name in "AWS_PROFILE", "AWS_SESSION_TOKEN", "AWS_ENDPOINT", "AWS_CA_BUNDLE":
            os.environ.pop(name, None)
        os.environ.update(AWS_ACCESS_KEY_ID="lab", AWS_SECRET_ACCESS_KEY="laboratory", AWS_REGION="us-east-1",
                          AWS_ENDPOINT_URL=f"http://127.0.0.1:{self.port}")
        self.serve(self.port)

    def serve(self, port, *options):
        keys = {"ROOT_ACCESS_KEY": "lab", "ROOT_SECRET_KEY": "laboratory"}
        self.start(self.versity, "--port", f"127.0.0.1:{port}", *options, "posix", "--sidecar", f"{self.store}/side",
                   f"{self.store}/gateway", env={**os.environ, **keys})
        until("versitygw listens", lambda: is_open(port))

    def asked(self):
        """Requests so far: versitygw tells each in a line."""
        with open(f"{self.work}/servers.log", "rb") as log:
            return log.read().count(b"\n")

    def gateway_that_keeps(self):
        """The port of another one over the same folder, which keeps its connections, as the large stores do."""
        self.gateway()
        port = free_port()
        self.serve(port, "--keep-alive")
        return port

    def url(self, kind):
        """A place for a replica that nobody has begun: on versitygw, in a folder beside it, or on the volume's disk."""
        name = self.fresh()
        if kind == "versitygw":
            self.gateway()
            return f"s3://lab/{name}"
        return f"file://{self.store if kind == 'folder' else self.work}/stores/{name}"

    def forget(self):
        """What the stores hold takes memory."""
        for folder in f"{self.store}/stores", f"{self.work}/stores":
            shutil.rmtree(folder, ignore_errors=True)
        if self.port:
            for name in os.listdir(f"{self.store}/gateway/lab"):
                shutil.rmtree(f"{self.store}/gateway/lab/{name}", ignore_errors=True)

    @contextlib.contextmanager
    def mounted(self, device, *options):
        """A mount that this process serves by a child: (directory, its process)."""
        directory = self.folder(self.fresh())
        log = f"log={directory}.log"
        words = ["mount", "--foreground", "-o", ",".join([log, *options]), device, directory]
        daemon = subprocess.Popen([self.command, *words])
        try:
            until("it mounts", lambda: os.path.ismount(directory) or daemon.poll() is not None)
            if daemon.poll() is not None:
                raise RuntimeError(f"the mount of {device} ends by {daemon.returncode}")
            yield directory, daemon
            self.syncline("umount", directory)
            daemon.wait(60)
        finally:
            if daemon.poll() is None:
                subprocess.run(["umount", "-l", directory], check=False)
                end(daemon)

    @contextlib.contextmanager
    def lost(self, device):
        """The same, of a machine that is lost in the end."""
        directory = self.folder(self.fresh())
        words = ["mount", "--foreground", "-o", f"log={directory}.log", device, directory]
        daemon = subprocess.Popen([self.command, *words])
        try:
            until("it mounts", lambda: os.path.ismount(directory) or daemon.poll() is not None)
            yield directory, daemon
        finally:
            daemon.kill()
            daemon.wait()
            subprocess.run(["umount", "-l", directory], check=False, capture_output=True)

    def replica(self, directory):
        return json.loads(self.syncline("stats", "--json", directory))["replica"]

    def shipped(self, directory, seconds=120):
        def is_shipped():
            told = self.replica(directory)
            return told["state"] == "streaming" and told["lag_ms"] == 0 and told["blocks_to_read"] == 0

        until("all is shipped", is_shipped, seconds, 0.05)

    def floor(self, seconds=1.0):
        """One pwrite of 4 KiB and one fdatasync on a file beside the volumes: median and 99th of a hundred."""
        took = []
        file = os.open(self.filled("floor", 64), os.O_WRONLY)
        end_at = time.perf_counter() + seconds
        number = 0
        while time.perf_counter() < end_at:
            before = time.perf_counter_ns()
            os.pwrite(file, TABLE[:BLOCK], number % 16384 * BLOCK)
            os.fdatasync(file)
            took.append((time.perf_counter_ns() - before) / 1000)
            number += 1
        os.close(file)
        return {"floor/p50": statistics.median(took), "floor/p99": percentile(took, 0.99)}


def end(process):
    if process.poll() is None:
        process.send_signal(signal.SIGCONT)
        process.terminate()
        try:
            process.wait(20)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def told(sentence):
    print(sentence, file=sys.stderr, flush=True)
