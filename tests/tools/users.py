#!/usr/bin/env python3
"""What users of one mount do to each other's files, as lines that are the same on every right filesystem.

usage: users.py [--quick] DIRECTORY

Root makes files, another user (and root, and members of groups) changes them, and after each call everything is read back:

- by `stat`, as the kernel has it cached (each attribute asked for by itself), and as the filesystem says when it is asked anew.
  Both have to agree; where they do not, the line says STALE and which.
- by `open` and `exec`: which user and group a program with set-id bits runs as. Half of the cases execute the file before anybody
  has asked for its attributes, because the kernel goes by what it has cached.

One line for each case; lines of two filesystems can be compared with diff. Needs root, and a directory on a mount without `nosuid`.
Option --quick leaves out most combinations of modes and groups.
"""

import ctypes
import errno
import fcntl
import mmap
import os
import shutil
import socket
import stat
import struct
import sys
import time

USER, GROUP, MEMBER_OF, STRANGER = 4242, 4242, 4300, 4343
AT_FDCWD = -100
AT_SYMLINK_NOFOLLOW, AT_EMPTY_PATH, FORCE_SYNC = 0x100, 0x1000, 0x2000
# Bits and places of `struct statx`, in the order in which they are asked for: the times last, because a question for
# one that the kernel knows to be old refreshes the others too.
FIELDS = [
    ("mode", 0x3, 28, "H"), ("uid", 0x8, 20, "I"), ("gid", 0x10, 24, "I"), ("nlink", 0x4, 16, "I"), ("size", 0x200, 40, "Q"),
    ("blocks", 0x400, 48, "Q"), ("mtime", 0x40, 112, "qI"), ("ctime", 0x80, 96, "qI"),
]
FALLOC_KEEP_SIZE, FALLOC_PUNCH_HOLE, FALLOC_ZERO_RANGE = 1, 2, 16
GET_FLAGS, SET_FLAGS, SET_EXTENDED, GET_EXTENDED = 0x80086601, 0x40086602, 0x401C5820, 0x801C581F
IMMUTABLE, APPEND_ONLY, NO_DUMP, NO_ATIME = 0x10, 0x20, 0x40, 0x80
ACCESS, DEFAULT = "system.posix_acl_access", "system.posix_acl_default"
RENAME_EXCHANGE = 2
ANY = 0xFFFFFFFF

libc = ctypes.CDLL(None, use_errno=True)


def check(result):
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
    return result


def name_of(number):
    return errno.errorcode.get(number, str(number))


def statx(path, flags, mask):
    buffer = ctypes.create_string_buffer(256)
    check(libc.statx(AT_FDCWD, os.fsencode(path), flags | AT_SYMLINK_NOFOLLOW, mask, buffer))
    return buffer.raw


def field(raw, place, form):
    values = struct.unpack_from("<" + form, raw, place)
    return values[0] if len(values) == 1 else values


def asked_anew(path):
    raw = statx(path, FORCE_SYNC, 0x7FF)
    return {name: field(raw, place, form) for name, _, place, form in FIELDS}


def as_cached(path):
    return {name: field(statx(path, 0, mask), place, form) for name, mask, place, form in FIELDS}


def as_user(action, uid=USER, gid=GROUP, groups=(MEMBER_OF,)):
    """Runs `action` in a process of that user; the name of the error it ended with, or "ok"."""
    child = os.fork()
    if child == 0:
        code = 255
        try:
            os.setgroups(list(groups))
            os.setresgid(gid, gid, gid)
            os.setresuid(uid, uid, uid)
            action()
            code = 0
        except OSError as error:
            code = error.errno
        finally:
            os._exit(code)
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    return "ok" if code == 0 else name_of(code)


def as_root(action):
    try:
        action()
        return "ok"
    except OSError as error:
        return name_of(error.errno)


def runs_as(path, uid=STRANGER, gid=STRANGER):
    """Effective user and group of the program when a third user executes it."""
    told = []
    for option in ("-u", "-g"):
        back, to = os.pipe()
        child = os.fork()
        if child == 0:
            try:
                os.setgroups([])
                os.setresgid(gid, gid, gid)
                os.setresuid(uid, uid, uid)
                os.dup2(to, 1)
                os.dup2(os.open("/dev/null", os.O_WRONLY), 2)
                os.execv(path, ["id", option])
            except OSError as error:
                os.write(to, name_of(error.errno).encode())
            finally:
                os._exit(0)
        os.close(to)
        os.waitpid(child, 0)
        told.append(os.read(back, 100).decode().strip() or "nothing")
        os.close(back)
    return "/".join(told)


class Table:
    """Prepares cases, lets the clock go on, runs them, and prints a line for each."""

    def __init__(self, top):
        self.top = top
        self.cases = []
        self.stale = 0

    def path(self):
        return f"{self.top}/{len(self.cases):04}"

    def add(self, title, path, call, watched=None, program=False, stat_first=True):
        self.cases.append((title, path, call, watched or [path], program, stat_first))

    def seen(self, path, before):
        try:
            cached, now = as_cached(path), asked_anew(path)
        except OSError as error:
            return name_of(error.errno)
        stale = [name for name in now if cached[name] != now[name]]
        if stale == ["blocks"]:
            # Writeback may settle this number between the two questions. The second one has renewed the kernel's
            # attributes, so stale blocks are not found here; every other attribute is judged by the first look.
            cached = as_cached(path)
            stale = [name for name in now if cached[name] != now[name]]
        self.stale += len(stale)
        changed = "".join(letter for letter, name in (("m", "mtime"), ("c", "ctime")) if before and before[name] != now[name])
        size = "-" if stat.S_ISDIR(now["mode"]) else now["size"]
        told = f"{now['mode']:06o} {now['uid']}:{now['gid']} links={now['nlink']} size={size} changed={changed or '-'}"
        return told + (f" STALE {','.join(stale)}" if stale else "")

    def run(self):
        # The kernel knows everything, and every clock has ticked.
        before = {path: asked_anew(path) for case in self.cases for path in case[3] if os.path.lexists(path)}
        for path in before:
            as_cached(path)
        time.sleep(0.05)
        for title, path, call, watched, program, stat_first in self.cases:
            result = call(path)
            told, seen = "", []
            if program and not stat_first:
                told = f" runs as {runs_as(path)}"
            seen = [self.seen(each, before.get(each)) for each in watched]
            if program and stat_first:
                told = f" runs as {runs_as(path)}"
            print(f"{title}: {result}: {'; '.join(seen)}{told}", flush=True)
        self.cases.clear()


# Changes of content.


def opened(path, flags, action):
    file = os.open(path, flags)
    try:
        return action(file)
    finally:
        os.close(file)


def aligned(content):
    buffer = mmap.mmap(-1, (len(content) + 4095) // 4096 * 4096)
    buffer[: len(content)] = content
    return buffer


def mapped(path, synced):
    def change(file):
        with mmap.mmap(file, 0) as memory:
            memory[100] = memory[100]
            if synced:
                memory.flush()

    opened(path, os.O_RDWR, change)


def sent(path, source, how):
    def change(target):
        def copy(file):
            left = os.fstat(file).st_size
            while left > 0:
                left -= how(file, target, left) or left
        opened(source, os.O_RDONLY, copy)

    opened(path, os.O_WRONLY, change)


def fallocate(path, mode, offset, length):
    call = lambda file: check(libc.fallocate(file, mode, ctypes.c_int64(offset), ctypes.c_int64(length)))
    opened(path, os.O_RDWR, call)


def rewritten(content):
    """Each way to change a file so that it is the same program afterwards. `content` is in a file as well."""
    program = open(content, "rb").read()
    size = len(program)

    def truncated(path):
        opened(path, os.O_WRONLY | os.O_TRUNC, lambda file: os.write(file, program))

    def directly(path):
        opened(path, os.O_WRONLY | os.O_DIRECT, lambda file: os.writev(file, [aligned(program[:4096])]))

    def renewed(path):
        opened(path, os.O_WRONLY | os.O_TRUNC, lambda file: None)
        opened(path, os.O_WRONLY, lambda file: os.write(file, program))

    def write(flags, at=0, count=size):
        return lambda path: opened(path, os.O_WRONLY | flags, lambda file: os.pwrite(file, program[at : at + count], at))

    return {
        "write": write(0),
        "write of one byte": write(0, 7, 1),
        "write of nothing": lambda path: opened(path, os.O_WRONLY, lambda file: os.write(file, b"")),
        "append": lambda path: opened(path, os.O_WRONLY | os.O_APPEND, lambda file: os.write(file, b"\0")),
        "O_DIRECT": directly,
        "O_DSYNC": write(os.O_DSYNC),
        "O_TRUNC": truncated,
        "O_TRUNC, then write": renewed,
        "truncate beyond the end": lambda path: os.truncate(path, size + 10_000),
        "truncate to the same size": lambda path: os.truncate(path, size),
        "ftruncate": lambda path: opened(path, os.O_WRONLY, lambda file: os.ftruncate(file, size + 1)),
        "fallocate": lambda path: fallocate(path, 0, size, 8192),
        "fallocate, same size": lambda path: fallocate(path, FALLOC_KEEP_SIZE, 0, size + 50_000),
        "punch behind the end": lambda path: fallocate(path, FALLOC_KEEP_SIZE | FALLOC_PUNCH_HOLE, size + 8192, 4096),
        "zero behind the end": lambda path: fallocate(path, FALLOC_ZERO_RANGE, size, 4096),
        "copy_file_range": lambda path: sent(path, content, os.copy_file_range),
        "sendfile": lambda path: sent(path, content, lambda file, to, left: os.sendfile(to, file, None, left)),
        "mapping, msync": lambda path: mapped(path, True),
        "mapping": lambda path: mapped(path, False),
        "open for writing": lambda path: opened(path, os.O_RDWR, lambda file: None),
    }


def content_changes(table, program, quick):
    modes = [(0o4777, 0), (0o6767, 0)] if quick else [
        (0o0777, 0), (0o4777, 0), (0o2777, 0), (0o2777, GROUP), (0o6777, MEMBER_OF), (0o2767, 0), (0o6767, GROUP), (0o2767, MEMBER_OF),
    ]
    for mode, gid in modes:
        for what, change in rewritten(program).items():
            for who in ("user", "root"):
                for stat_first in (False, True):
                    path = table.path()
                    shutil.copyfile(program, path)
                    os.chown(path, 0, gid)
                    os.chmod(path, mode)
                    # The kernel has it in its caches.
                    runs_as(path)
                    call = (lambda path, change=change: as_user(lambda: change(path))) if who == "user" else (
                        lambda path, change=change: as_root(lambda: change(path)))
                    first = "stat" if stat_first else "exec"
                    title = f"{what} by {who}, {mode:04o} of group {gid}, {first} first"
                    table.add(title, path, call, program=True, stat_first=stat_first)
    table.run()


# Owners and modes.


def make(path, kind, program):
    if kind == "file":
        shutil.copyfile(program, path)
    elif kind == "directory":
        os.mkdir(path)
    elif kind == "fifo":
        os.mkfifo(path)
    elif kind == "symlink":
        os.symlink("nowhere", path)
    elif kind == "socket":
        os.mknod(path, stat.S_IFSOCK | 0o600)
    else:
        kinds = {"char": stat.S_IFCHR, "block": stat.S_IFBLK}
        os.mknod(path, kinds[kind] | 0o600, os.makedev(1, 3))


def owners(table, program, quick):
    kinds = ["file", "fifo", "directory"] if quick else ["file", "fifo", "socket", "char", "block", "directory", "symlink"]
    modes = [0o6555, 0o2644] if quick else [0o4555, 0o2555, 0o6555, 0o7777, 0o2644, 0o6644, 0o0644]
    calls = {
        "root, other user": (as_root, (STRANGER, -1)),
        "root, other group": (as_root, (-1, STRANGER)),
        "root, neither": (as_root, (-1, -1)),
        "owner, own group": (as_user, (-1, GROUP)),
        "owner, group it is in": (as_user, (-1, MEMBER_OF)),
        "owner, itself": (as_user, (USER, -1)),
        "owner, neither": (as_user, (-1, -1)),
        "owner, foreign group": (as_user, (-1, STRANGER)),
        "owner, other user": (as_user, (STRANGER, -1)),
        "stranger": (lambda action: as_user(action, STRANGER, STRANGER, ()), (-1, STRANGER)),
        "stranger, neither": (lambda action: as_user(action, STRANGER, STRANGER, ()), (-1, -1)),
    }
    for kind in kinds:
        for mode in modes if kind != "symlink" else [0o777]:
            for gid in (GROUP, MEMBER_OF, STRANGER):
                for who, (run, (uid, to)) in calls.items():
                    path = table.path()
                    make(path, kind, program)
                    os.lchown(path, USER, gid)
                    if kind != "symlink":
                        os.chmod(path, mode)
                    call = lambda path, run=run, uid=uid, to=to: run(lambda: os.lchown(path, uid, to))
                    table.add(f"chown of a {kind} {mode:04o} of group {gid} by {who}", path, call, program=kind == "file")
    table.run()


def modes(table, program, quick):
    for kind in ["file", "directory"] if quick else ["file", "directory", "fifo"]:
        for gid in (GROUP, MEMBER_OF, STRANGER):
            for mode in (0o4755, 0o2755, 0o6711, 0o2644, 0o1777):
                for who in ("root", "owner", "stranger"):
                    path = table.path()
                    make(path, kind, program)
                    os.chown(path, USER, gid)
                    run = {"root": as_root, "owner": as_user, "stranger": lambda action: as_user(action, STRANGER, STRANGER, ())}[who]
                    call = lambda path, run=run, mode=mode: run(lambda: os.chmod(path, mode))
                    table.add(f"chmod of a {kind} of group {gid} to {mode:04o} by {who}", path, call, program=kind == "file")
    table.run()


# Lists, attributes, flags, times.


def acl(user, mask=7, other=0):
    entries = [(1, 7, ANY), (2, user, USER), (4, 5, ANY), (16, mask, ANY), (32, other, ANY)]
    return struct.pack("<I", 2) + b"".join(struct.pack("<HHI", *entry) for entry in entries)


def may(path, flags, **who):
    return as_user(lambda: os.close(os.open(path, flags)), **who)


def lists(table, program):
    def case(title, gid, mode, call, owner=USER):
        path = table.path()
        shutil.copyfile(program, path)
        os.chown(path, owner, gid)
        os.chmod(path, mode)
        table.add(title, path, call, program=True)

    for gid in (GROUP, MEMBER_OF, STRANGER):
        for mode in (0o6755, 0o2700):
            name = f"{mode:04o} of group {gid}"
            case(f"list set by owner on {name}", gid, mode, lambda path: as_user(lambda: os.setxattr(path, ACCESS, acl(7))))
            case(f"list set by root on {name}", gid, mode, lambda path: as_root(lambda: os.setxattr(path, ACCESS, acl(7))))
            case(f"list set by another on {name}", gid, mode, lambda path: as_user(
                lambda: os.setxattr(path, ACCESS, acl(7)), STRANGER, STRANGER, ()))

    def given_and_taken(path):
        told = [may(path, os.O_RDWR)]
        os.setxattr(path, ACCESS, acl(6))
        told.append(may(path, os.O_RDWR))
        os.chmod(path, 0o740)
        told += [may(path, os.O_RDWR), may(path, os.O_RDONLY), os.getxattr(path, ACCESS).hex()]
        os.setxattr(path, ACCESS, acl(0))
        told.append(may(path, os.O_RDONLY))
        os.removexattr(path, ACCESS)
        told.append(may(path, os.O_RDONLY, uid=STRANGER, gid=0, groups=()))
        return " ".join(told)

    case("a list is given, masked, changed and taken away", 0, 0o700, given_and_taken, owner=0)

    def handed_down(path):
        os.mkdir(path + ".d")
        os.setxattr(path + ".d", DEFAULT, acl(7))
        os.chmod(path + ".d", 0o2777)
        told = [as_user(lambda: opened(path + ".d/f", os.O_RDWR | os.O_CREAT, lambda file: None), STRANGER, STRANGER, ())]
        told += [may(path + ".d/f", os.O_RDWR), f"{os.stat(path + '.d/f').st_mode:o}", os.getxattr(path + ".d/f", ACCESS).hex()]
        return " ".join(told)

    case("a list is handed down", 0, 0o755, handed_down, owner=0)
    table.run()


def attributes(table, program):
    def case(title, mode, call, owner=USER, program_runs=True):
        path = table.path()
        shutil.copyfile(program, path)
        os.chown(path, owner, GROUP)
        os.chmod(path, mode)
        table.add(title, path, call, program=program_runs)

    def run(action, *who):
        return lambda path: (as_user(lambda: action(path), *who) if who else as_root(lambda: action(path)))

    def get(path, name):
        try:
            return os.getxattr(path, name).hex()
        except OSError as error:
            return name_of(error.errno)

    def flags(number):
        def change(file):
            now = struct.unpack("<q", fcntl.ioctl(file, GET_FLAGS, bytes(8)))[0]
            number_now = now & ~(IMMUTABLE | APPEND_ONLY | NO_DUMP | NO_ATIME) | number
            fcntl.ioctl(file, SET_FLAGS, struct.pack("<q", number_now))
        return lambda path: opened(path, os.O_RDONLY, change)

    def extended(path):
        def change(file):
            now = fcntl.ioctl(file, GET_EXTENDED, bytes(28))
            # No dump.
            fcntl.ioctl(file, SET_EXTENDED, struct.pack("<I", struct.unpack("<I", now[:4])[0] | 0x80) + now[4:])
        opened(path, os.O_RDONLY, change)

    user, stranger = (USER, GROUP), (STRANGER, STRANGER, ())
    for who, ids in (("root", ()), ("owner", user), ("another", stranger)):
        case(f"attribute set by {who}", 0o4755, run(lambda path: os.setxattr(path, "user.a", b"1"), *ids))
        case(f"flags set by {who}", 0o4755, run(flags(NO_DUMP | NO_ATIME), *ids))
        case(f"immutable by {who}", 0o755, run(flags(IMMUTABLE), *ids))
        case(f"only for appending by {who}", 0o755, run(flags(APPEND_ONLY), *ids))
        case(f"extended flags set by {who}", 0o4755, run(extended, *ids))
        case(f"times set by {who}", 0o4755, run(lambda path: os.utime(path, ns=(10**18, 10**18)), *ids))
        case(f"times set to now by {who}", 0o4777, run(lambda path: os.utime(path), *ids))

    def taken_off(path):
        os.setxattr(path, "user.a", b"1")
        return run(lambda path: os.removexattr(path, "user.a"), *user)(path)

    case("attribute removed by owner", 0o4755, taken_off)
    for mode in (0o755, 0o4777):
        for who, ids in (("root", ()), ("owner", user), ("another", stranger)):
            if mode == 0o4777 and not ids:
                # The kernel announces it to a FUSE filesystem as it does a chown of nothing, so the bits go as well.
                continue
            def capabilities(path, ids=ids):
                os.setxattr(path, "security.capability", struct.pack("<IIIII", 0x02000001, 0x400, 0, 0, 0))
                before = get(path, "security.capability")
                done = run(lambda path: opened(path, os.O_WRONLY, lambda file: os.write(file, b"\x7f")), *ids)(path)
                return f"{before} {done} {get(path, 'security.capability')}"
            case(f"capabilities of {mode:04o} after a write by {who}", mode, capabilities, program_runs=False)
    table.run()
    for name in os.listdir(table.top):
        path = f"{table.top}/{name}"
        if os.path.isfile(path) and not os.path.islink(path):
            flags(0)(path)


# Names.


def names(table, program):
    def place(mode=0o755, uid=0, gid=0):
        path = table.path()
        os.mkdir(path)
        os.chown(path, uid, gid)
        os.chmod(path, mode)
        return path

    def put(path, uid=0, mode=0o755):
        shutil.copyfile(program, path)
        os.chown(path, uid, uid)
        os.chmod(path, mode)
        return path

    def case(title, call, mode=0o777, extra=("f", "g")):
        top = place(mode)
        for name in extra:
            put(f"{top}/{name}", STRANGER if name == "g" else USER)
        table.add(title, top, call, [top] + [f"{top}/{name}" for name in extra])

    def linked(top):
        os.link(f"{top}/f", f"{top}/h")
        told = [os.stat(f"{top}/h").st_nlink]
        os.unlink(f"{top}/f")
        told.append(os.stat(f"{top}/h").st_nlink)
        os.rename(f"{top}/g", f"{top}/h")
        return " ".join(map(str, told + [sorted(os.listdir(top))]))

    def replaced(top):
        os.link(f"{top}/f", f"{top}/other")
        with open(f"{top}/f", "rb") as file:
            os.rename(f"{top}/g", f"{top}/f")
            first = os.fstat(file.fileno()).st_nlink
            os.unlink(f"{top}/other")
            return f"{first} {os.fstat(file.fileno()).st_nlink}"

    def exchanged(top):
        pair = [os.fsencode(f"{top}/{name}") for name in "fg"]
        return as_root(lambda: check(libc.renameat2(AT_FDCWD, pair[0], AT_FDCWD, pair[1], RENAME_EXCHANGE)))

    def directories(top):
        os.makedirs(f"{top}/a/b")
        told = [os.stat(top).st_nlink, os.stat(f"{top}/a").st_nlink]
        os.rename(f"{top}/a/b", f"{top}/b")
        told += [os.stat(top).st_nlink, os.stat(f"{top}/a").st_nlink]
        os.rmdir(f"{top}/a")
        return " ".join(map(str, told + [os.stat(top).st_nlink]))

    def nameless(top):
        def name(file):
            told = os.fstat(file).st_nlink
            check(libc.linkat(file, b"", AT_FDCWD, os.fsencode(f"{top}/named"), AT_EMPTY_PATH))
            return f"{told} {os.fstat(file).st_nlink}"
        return opened(top, os.O_TMPFILE | os.O_RDWR, name)

    case("links, unlinks, renames", linked)
    case("a name is replaced that has another link and is open", replaced)
    case("two names change places", exchanged)
    case("directories are made, moved and removed", directories)
    case("a file without a name gets one", nameless)

    # A sticky directory: only owners take names away.
    calls = {
        "unlink of own": lambda top: os.unlink(f"{top}/f"),
        "unlink of another's": lambda top: os.unlink(f"{top}/g"),
        "rename of another's": lambda top: os.rename(f"{top}/g", f"{top}/h"),
        "rename over another's": lambda top: os.rename(f"{top}/f", f"{top}/g"),
        "rename over own": lambda top: os.rename(f"{top}/f", f"{top}/new"),
        "link of another's": lambda top: os.link(f"{top}/g", f"{top}/h"),
        "new file": lambda top: opened(f"{top}/n", os.O_WRONLY | os.O_CREAT | os.O_EXCL, lambda file: None),
        "new directory": lambda top: os.mkdir(f"{top}/n"),
        "new symlink": lambda top: os.symlink("x", f"{top}/n"),
        "new socket": lambda top: socket_at(f"{top}/n"),
        "new device": lambda top: os.mknod(f"{top}/n", stat.S_IFCHR | 0o600, os.makedev(1, 3)),
        "over a directory": lambda top: os.rename(f"{top}/f", f"{top}/none/f"),
    }
    for mode in (0o1777, 0o777, 0o755, 0o3777, 0o2775):
        for what, call in calls.items():
            run = lambda top, call=call: as_user(lambda: call(top))
            case(f"{what} in a directory of {mode:04o}", run, mode, ("f", "g"))
    # What is made below a set-group-ID directory.
    def handed_down(top):
        os.chown(top, 0, STRANGER)
        os.chmod(top, 0o2777)
        told = [as_user(lambda: os.mkdir(f"{top}/d")), as_user(lambda: opened(f"{top}/n", os.O_CREAT | os.O_RDWR, lambda file: os.fchmod(file, 0o2755)))]
        told.append(as_user(lambda: os.close(os.open(f"{top}/x", os.O_CREAT | os.O_RDWR, 0o6777))))
        return " ".join(told + [f"{os.stat(f'{top}/{name}').st_mode:o}/{os.stat(f'{top}/{name}').st_gid}" for name in "dnx"])

    case("a set-group-ID directory hands its group down", handed_down)
    table.run()


def socket_at(path):
    here = os.getcwd()
    os.chdir(os.path.dirname(path))
    try:
        with socket.socket(socket.AF_UNIX) as made:
            made.bind(os.path.basename(path))
    finally:
        os.chdir(here)


def main():
    arguments = [argument for argument in sys.argv[1:] if argument != "--quick"]
    if len(arguments) != 1 or os.geteuid() != 0:
        print(__doc__.strip(), file=sys.stderr)
        sys.exit(2)
    quick = "--quick" in sys.argv
    os.umask(0o022)
    top = f"{arguments[0]}/users"
    os.mkdir(top)
    os.chmod(top, 0o755)
    program = f"{top}/program"
    shutil.copyfile(os.path.realpath(shutil.which("id")), program)
    os.chmod(program, 0o755)
    tables = {
        "content": lambda table: content_changes(table, program, quick),
        "owners": lambda table: owners(table, program, quick),
        "modes": lambda table: modes(table, program, quick),
        "lists": lambda table: lists(table, program),
        "attributes": lambda table: attributes(table, program),
        "names": lambda table: names(table, program),
    }
    stale = 0
    for name, fill in tables.items():
        os.mkdir(f"{top}/{name}")
        table = Table(f"{top}/{name}")
        fill(table)
        stale += table.stale
        shutil.rmtree(f"{top}/{name}")
    shutil.rmtree(top)
    sys.exit(1 if stale else 0)


main()
