#!/usr/bin/env python3
"""Machines take a replica over from each other, and die or stand still; then the history is restored.

usage: claims.py URL ROUNDS RESTORES [SEED]

In each round another image takes the replica over, is mounted with ack=remote, and appends lines, each with an fsync.
Then its daemon is killed, or stopped. One that was stopped goes on when its successor has written: its next sync has to
fail. Everything that was acknowledged has to be in what the next one takes over. In the end RESTORES random moments of
the recorded history are restored, and have to be what they were.

SYNCLINE is the command under test; the current folder gets the images. Prints one line; exit code 1: something failed.
"""

import json
import os
import random
import signal
import subprocess
import sys
import time

SYNCLINE = os.environ["SYNCLINE"]
URL, ROUNDS, RESTORES = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
SEED = int(sys.argv[4]) if len(sys.argv) > 4 else 1
CHANCE = random.Random(SEED)
WAIT = 60


def run(*words, fails=False):
    done = subprocess.run([SYNCLINE, *words], capture_output=True, text=True, timeout=300)
    if (done.returncode != 0) != fails:
        raise SystemExit(f"claims: {' '.join(words)}: exit code {done.returncode}: {done.stdout}{done.stderr}")
    return done.stdout


def daemon_of(image):
    """The process of the command that has the image open."""
    own = os.path.realpath(SYNCLINE)
    for process in filter(str.isdigit, os.listdir("/proc")):
        try:
            if os.readlink(f"/proc/{process}/exe") != own:
                continue
            for fd in os.listdir(f"/proc/{process}/fd"):
                if os.readlink(f"/proc/{process}/fd/{fd}") == os.path.realpath(image):
                    return int(process)
        except OSError:
            pass
    return None


def until(what, is_so):
    end = time.monotonic() + WAIT
    while not is_so():
        if time.monotonic() > end:
            raise SystemExit(f"claims: not within {WAIT} s: {what}")
        time.sleep(0.05)


def append(path, line):
    with open(path, "a", encoding="ascii") as file:
        file.write(line + "\n")
        file.flush()
        os.fsync(file.fileno())


def gone(image, mount):
    """Takes a mount away whose daemon is dead, or about to end."""
    subprocess.run(["umount", "-l", mount], check=False, capture_output=True)
    until(f"the daemon of {image} ends", lambda: daemon_of(image) is None)
    os.remove(image)


def told_to_stop(image, mount, process):
    """Somebody has taken over: the next syncs fail, at the latest when the unit does not count."""
    os.kill(process, signal.SIGCONT)

    def fails():
        try:
            append(f"{mount}/log", "never to be seen")
            return False
        except OSError:
            return True

    # With ack=remote the first sync is not acknowledged.
    if not fails():
        raise SystemExit(f"claims: {image} acknowledged a sync although somebody has taken over")
    gone(image, mount)


def main():
    run("mkfs", "--quiet", "--size", "8M", "first.img")
    run("replica", "init", "--keep", "all", URL, "first.img")
    os.remove("first.img")
    lines, history, stopped, counts = [], [], None, {"killed": 0, "stopped": 0}
    for number in range(ROUNDS):
        image, mount = f"machine{number}.img", f"mount{number % 3}"
        os.makedirs(mount, exist_ok=True)
        if CHANCE.randrange(2) == 0:
            run("replica", "restore", "--take-over", URL, image)
            run("mount", "-o", f"replica={URL},ack=remote,log={os.getcwd()}/daemon.log", image, mount)
        else:
            # The same at once.
            run("mount", "-o", f"ack=remote,log={os.getcwd()}/daemon.log", "--local", image, URL, mount)
        found = []
        if os.path.exists(f"{mount}/log"):
            with open(f"{mount}/log", encoding="ascii") as file:
                found = file.read().splitlines()
        if found != lines:
            raise SystemExit(f"claims: round {number}: want {len(lines)} lines, found {found[-3:]} ({len(found)})")
        for part in range(CHANCE.randrange(1, 5)):
            append(f"{mount}/log", f"{number}.{part}")
            lines.append(f"{number}.{part}")
            told = json.loads(run("stats", "--json", mount))["replica"]
            history.append((told["claim"], told["units"] - 1, len(lines)))
        if stopped:
            told_to_stop(*stopped)
            stopped = None
        process = daemon_of(image)
        if CHANCE.randrange(2) == 0:
            os.kill(process, signal.SIGKILL)
            gone(image, mount)
            counts["killed"] += 1
        else:
            os.kill(process, signal.SIGSTOP)
            stopped = (image, mount, process)
            counts["stopped"] += 1
    if stopped:
        os.kill(stopped[2], signal.SIGKILL)
        gone(*stopped[:2])
    for number in range(RESTORES):
        claim, unit, count = CHANCE.choice(history)
        run("replica", "restore", "--at", f"{claim}/{unit}", URL, "then.img")
        run("check", "--quiet", "then.img")
        found = run("cat", "then.img", "/log").splitlines()
        os.remove("then.img")
        # A figure names the unit of the sync that has just returned; no line follows before the next is written.
        if found != lines[:count]:
            raise SystemExit(f"claims: {claim}/{unit} had {count} lines, and comes back with {len(found)}")
    print(f"claims: {ROUNDS} take-overs ({counts['killed']} killed, {counts['stopped']} stopped), {len(lines)} lines, "
          f"{RESTORES} moments restored, seed {SEED}")


main()
