"""Extended attributes of every size.

usage: xattrs.py make|verify DIRECTORY

Values above some kilobytes are refused by other filesystems (ENOSPC, E2BIG); only Syncline must take all up to the
kernel's limit of 64 KiB.
"""

import errno
import hashlib
import os
import sys

VALUE_MAX = 65_536
SIZES = [0, 1, 2, 15, 16, 100, 255, 256, 1000, 3000, 4000, 4095, 4096, 4097, 8192, 16_000, 16_384, 30_000, 65_535, 65_536]
STRICT = os.environ.get("BACKEND", "syncline") == "syncline"
MANY = 200 if STRICT else 20


def value(size):
    return (hashlib.sha256(str(size).encode()).digest() * (size // 32 + 1))[:size]


def refused(code, call, *arguments):
    try:
        call(*arguments)
    except OSError as error:
        assert error.errno == code, f"{error.strerror}, not {os.strerror(code)}"
    else:
        raise AssertionError(f"{call.__name__} of {arguments[:2]} worked")


def each_size(top):
    for size in SIZES:
        yield size, f"{top}/size-{size}"


def make(top):
    for size, path in each_size(top):
        open(path, "w").close()
        try:
            os.setxattr(path, "user.v", value(size))
        except OSError as error:
            assert not STRICT and error.errno in (errno.ENOSPC, errno.E2BIG), f"{size} bytes: {error}"
            os.unlink(path)
    many = f"{top}/many"
    os.mkdir(many)
    for number in range(MANY):
        os.setxattr(many, f"user.{number}", value(number))
    for number in range(0, MANY, 2):
        os.removexattr(many, f"user.{number}")
    # Replaced by larger, by smaller, by nothing.
    changed = f"{top}/changed"
    open(changed, "w").close()
    for size in (10, 2000, 100, 0, 50):
        os.setxattr(changed, "user.v", value(size))
        assert os.getxattr(changed, "user.v") == value(size)
    os.setxattr(changed, "user." + "n" * 250, b"long name")
    os.setxattr(changed, "trusted.t", b"trusted")
    os.setxattr(changed, "security.s", b"security")
    os.symlink("nowhere", f"{top}/link")
    os.setxattr(f"{top}/link", "trusted.l", b"on a link", follow_symlinks=False)
    refused(errno.EEXIST, os.setxattr, changed, "user.v", b"", os.XATTR_CREATE)
    refused(errno.ENODATA, os.setxattr, changed, "user.none", b"", os.XATTR_REPLACE)
    refused(errno.ENODATA, os.getxattr, changed, "user.none")
    refused(errno.ENODATA, os.removexattr, changed, "user.none")
    refused(errno.ERANGE, os.setxattr, changed, "user." + "n" * 251, b"")
    refused(errno.E2BIG, os.setxattr, changed, "user.v", bytes(VALUE_MAX + 1))
    verify(top)


def verify(top):
    for size, path in each_size(top):
        if STRICT or os.path.exists(path):
            assert os.getxattr(path, "user.v") == value(size), f"{size} bytes"
    many = f"{top}/many"
    names = {n for n in os.listxattr(many) if n.startswith("user.")}
    assert names == {f"user.{n}" for n in range(1, MANY, 2)}, f"{len(names)} names"
    for number in range(1, MANY, 2):
        assert os.getxattr(many, f"user.{number}") == value(number)
    changed = f"{top}/changed"
    assert os.getxattr(changed, "user.v") == value(50)
    assert os.getxattr(changed, "user." + "n" * 250) == b"long name"
    assert os.getxattr(changed, "trusted.t") == b"trusted" and os.getxattr(changed, "security.s") == b"security"
    assert os.getxattr(f"{top}/link", "trusted.l", follow_symlinks=False) == b"on a link"


{"make": make, "verify": verify}[sys.argv[1]](sys.argv[2])
