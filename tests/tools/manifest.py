"""Prints one line for each thing in a tree, sorted: what two copies of a tree must agree on.

usage: manifest.py DIRECTORY [--no-times]

Type and permissions, owner, size, links, modification time in nanoseconds (of everything but directories), content's
SHA-256 or a link's target, extended attributes, path.
"""

import hashlib
import os
import stat
import sys


def content(path, info):
    if stat.S_ISREG(info.st_mode):
        digest = hashlib.sha256()
        with open(path, "rb") as file:
            while piece := file.read(1 << 20):
                digest.update(piece)
        return digest.hexdigest()
    if stat.S_ISLNK(info.st_mode):
        return repr(os.readlink(path))
    if stat.S_ISBLK(info.st_mode) or stat.S_ISCHR(info.st_mode):
        return str(info.st_rdev)
    return "-"


def attributes(path):
    names = sorted(os.listxattr(path, follow_symlinks=False))
    return ";".join(f"{n}={os.getxattr(path, n, follow_symlinks=False).hex()}" for n in names) or "-"


def line(path, shown, times):
    info = os.lstat(path)
    directory = stat.S_ISDIR(info.st_mode)
    size = "-" if directory else info.st_size
    modified = "-" if directory or not times else info.st_mtime_ns
    fields = [f"{info.st_mode:o}", info.st_uid, info.st_gid, size, "-" if directory else info.st_nlink, modified]
    fields += [content(path, info), attributes(path), shown]
    return b"\t".join(f if isinstance(f, bytes) else str(f).encode() for f in fields)


def main():
    top = os.fsencode(sys.argv[1])
    times = "--no-times" not in sys.argv[2:]
    lines = []
    for directory, directories, files in os.walk(top):
        for name in directories + files:
            path = os.path.join(directory, name)
            lines.append(line(path, os.path.relpath(path, top), times))
    lines.sort(key=lambda text: text.rsplit(b"\t", 1)[1])
    sys.stdout.buffer.write(b"\n".join(lines) + b"\n")


main()
