#!/usr/bin/env python3
"""Counts the instructions that a FUSE daemon executes for each message: instructions.py SYNCLINE MEMORY [FILES] [OPTIONS]

SYNCLINE is the program `syncline`, MEMORY the example "memory" of the crate fusering (cargo build --release --example
memory -p fusering); "-" leaves one out. Each serves a mount over /dev/fuse under callgrind, one after the other, while
the same files are made, written, given times, owner and mode, looked up, read and removed. What is counted is what the
daemon executes in user space between the decoded request and the end of its method; what it does beside messages
(writing back, checkpoints) is told as a sum. OPTIONS are mount options of Syncline. Needs root and valgrind.
"""

import os
import re
import subprocess
import sys
import tempfile
import time

METHODS = ("lookup create write setattr getattr getxattr listxattr setxattr mkdir unlink rmdir rename open read release "
           "readdir readdirplus symlink readlink link forget").split()
# The type that has the method, and the method.
METHOD = re.compile(r"([\w:]+ as|impl) fusering::filesystem::Filesystem(?: for ([\w:]+))?>::(\w+)$")


def work(top, files):
    for directory in range(0, files, 100):
        os.mkdir(f"{top}/{directory}")
    names = [f"{top}/{number // 100 * 100}/file-{number}.txt" for number in range(files)]
    for number, name in enumerate(names):
        file = os.open(name, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        os.write(file, b"x" * 4000)
        os.utime(file, (1_000_000_000 + number, 1_000_000_000))
        os.fchown(file, 1000, 1000)
        os.fchmod(file, 0o644)
        os.close(file)
    for directory in range(0, files, 100):
        os.listdir(f"{top}/{directory}")
        os.rename(f"{top}/{directory}/file-{directory}.txt", f"{top}/{directory}/renamed")
        names[directory] = f"{top}/{directory}/renamed"
    for name in names:
        file = os.open(name, os.O_RDONLY)
        os.fstat(file)
        os.read(file, 8192)
        os.close(file)
    for name in names:
        os.unlink(name)
    for directory in range(0, files, 100):
        os.rmdir(f"{top}/{directory}")


def serve(command, top, files):
    """The calls and instructions of each method, and all instructions, of the daemon that `command` starts."""
    with tempfile.NamedTemporaryFile(prefix="syncline-instructions.", dir="/var/tmp") as out:
        valgrind = ["valgrind", "--tool=callgrind", f"--callgrind-out-file={out.name}", "--error-exitcode=0"]
        daemon = subprocess.Popen([*valgrind, *command], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
        try:
            for _ in range(600):
                if os.path.ismount(top) or daemon.poll() is not None:
                    break
                time.sleep(0.1)
            if not os.path.ismount(top):
                sys.exit(f"{command[0]} does not mount: {daemon.communicate()[1]}")
            work(top, files)
        finally:
            if os.path.ismount(top):
                subprocess.run(["umount", top], check=True)
            daemon.communicate(timeout=120)
        keep = os.environ.get("KEEP")
        if keep:
            subprocess.run(["cp", out.name, f"{keep}.{os.path.basename(command[0])}"], check=True)
        return counted(open(out.name, encoding="utf-8"))


def counted(lines):
    names, found, total = {}, {}, 0
    called = None
    for line in lines:
        if line.startswith("cfn="):
            number, _, name = line[4:].strip().partition(" ")
            called = names.setdefault(number, name)
        elif line.startswith("fn="):
            number, _, name = line[3:].strip().partition(" ")
            names.setdefault(number, name)
        elif line.startswith("calls="):
            count = int(line[6:].split()[0])
            cost = int(next(lines).split()[-1])
            method = METHOD.search(called)
            if method:
                one = found.setdefault(method[3], {}).setdefault((method[1], method[2]), [0, 0])
                one[0] += count
                one[1] += cost
        elif line.startswith(("summary:", "totals:")):
            total = int(line.split()[1])
    # A filesystem that stands on another one contains it.
    outermost = {method: max(types.values(), key=lambda one: one[1]) for method, types in found.items()}
    calls = {method: one[0] for method, one in outermost.items()}
    return calls, {method: one[1] for method, one in outermost.items()}, total


def main():
    if len(sys.argv) < 3:
        sys.exit(__doc__)
    syncline, memory = sys.argv[1:3]
    files = int(sys.argv[3]) if len(sys.argv) > 3 else 2000
    options = sys.argv[4] if len(sys.argv) > 4 else "rw"
    with tempfile.TemporaryDirectory(prefix="syncline-instructions.", dir="/var/tmp") as at:
        top, image = f"{at}/mnt", f"{at}/image"
        os.mkdir(top)
        results = []
        if syncline != "-":
            subprocess.run([syncline, "mkfs", "--quiet", "--size", "512M", image], check=True)
            mount = [syncline, "mount", "--foreground", "-o", f"transport=dev,{options}", image, top]
            results.append(("syncline", *serve(mount, top, files)))
        if memory != "-":
            results.append(("memory", *serve([memory, top, "dev"], top, files)))
    print(f"| message | {' | '.join(f'{name}, calls | instructions' for name, *_ in results)} | times |")
    print("|---" * (2 * len(results) + 2) + "|")
    for method in METHODS:
        if not any(method in calls for _, calls, _, _ in results):
            continue
        each = [instructions[method] / calls[method] if calls.get(method) else None for _, calls, instructions, _ in results]
        cells = [f"{calls.get(method, 0)} | {'-' if one is None else f'{one:,.0f}'}" for (_, calls, _, _), one in zip(results, each)]
        times = f"{each[0] / each[1]:.2f}" if len(each) == 2 and all(each) else "-"
        print(f"| {method.upper()} | {' | '.join(cells)} | {times} |")
    sums = [f"{sum(calls.values())} | {total:,}" for _, calls, _, total in results]
    print(f"| all that is executed | {' | '.join(sums)} | |")


if __name__ == "__main__":
    main()
