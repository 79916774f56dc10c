#!/usr/bin/env python3
"""A volume on an image of Ceph while storage daemons die, stand still, and the monitor is started again.

usage: tests/replica/stalls.py DIRECTORY DEVICE CLUSTER

SYNCLINE is the command. Records are appended and synced through a mount all the time. Nothing may fail: a request that no
daemon answers is waited for. Afterwards every record is there. Prints how long syncs stood at most, which is Ceph's to
decide (docs/devices.md), and ends with "stalls: N passed, M failed".
"""

import os
import signal
import subprocess
import sys
import threading
import time

STOPPED_SECONDS = 60


def run(*words):
    subprocess.run(words, check=True, timeout=300)


class Writer(threading.Thread):
    """Appends records to a file, each synced."""

    def __init__(self, path):
        super().__init__()
        self.path, self.acknowledged, self.longest, self.error = path, 0, 0.0, None
        self.since = time.monotonic()
        self.ending = False

    def run(self):
        try:
            with open(self.path, "ab", buffering=0) as file:
                while not self.ending:
                    file.write(b"%015d\n" % self.acknowledged)
                    os.fsync(file.fileno())
                    self.acknowledged += 1
                    now = time.monotonic()
                    self.longest = max(self.longest, now - self.since)
                    self.since = now
        except OSError as error:
            self.error = error

    def end(self):
        self.ending = True
        self.join(300)


def daemon(cluster, name):
    with open(f"{cluster}/run/{name}.pid", encoding="ascii") as file:
        return int(file.read())


def killed(cluster):
    """A storage daemon is killed, and started again after a while."""
    os.kill(daemon(cluster, "osd.1"), signal.SIGKILL)
    time.sleep(10)
    run("ceph-osd", "-c", f"{cluster}/ceph.conf", "-i", "1", "--keyring", f"{cluster}/osd.1/keyring")
    time.sleep(20)


def stopped(cluster):
    """A storage daemon stands still, as if its host were gone, and goes on."""
    pid = daemon(cluster, "osd.2")
    os.kill(pid, signal.SIGSTOP)
    try:
        time.sleep(STOPPED_SECONDS)
    finally:
        os.kill(pid, signal.SIGCONT)
    time.sleep(20)


def monitor(cluster):
    """The monitor is started again."""
    os.kill(daemon(cluster, "mon.a"), signal.SIGTERM)
    time.sleep(5)
    run("ceph-mon", "-c", f"{cluster}/ceph.conf", "-i", "a")
    time.sleep(10)


def main():
    directory, device, cluster = sys.argv[1:]
    command = os.environ["SYNCLINE"]
    if os.geteuid() != 0 or not os.access("/dev/fuse", os.W_OK):
        print("skipped: stalls: mounts need root and /dev/fuse")
        return 0
    mount = os.path.join(directory, "stalls")
    os.mkdir(mount)
    run(command, "mkfs", "--quiet", device)
    passed = failed = 0
    for case, most in (killed, 30), (stopped, 55), (monitor, 30):
        name = case.__name__
        run(command, "mount", device, mount)
        writer = Writer(os.path.join(mount, name))
        writer.start()
        time.sleep(2)
        case(cluster)
        writer.end()
        run(command, "umount", mount)
        found = subprocess.run([command, "cat", device, f"/{name}"], check=True, capture_output=True, timeout=300).stdout
        whole = found == b"".join(b"%015d\n" % number for number in range(writer.acknowledged))
        well = writer.error is None and whole and not writer.is_alive() and writer.longest < most
        passed, failed = passed + well, failed + (not well)
        told = f"{name}: {writer.acknowledged} syncs, none failed, the longest stood {writer.longest:.1f} s"
        print(told if well else f"FAIL  {told}; error {writer.error}, all there: {whole}")
    run(command, "check", "--quiet", device)
    print(f"stalls: {passed} passed, {failed} failed")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
