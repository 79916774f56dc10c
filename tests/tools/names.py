"""Names of every length and of every byte.

usage: names.py make|verify DIRECTORY
"""

import errno
import os
import sys

LONG = [b"n" * 255, b"\xc3\xa4" * 127 + b"x", b"\xff\xfe" * 127 + b"\x80", b" " * 255, b"." * 255, "名".encode() * 85]
# Every byte but NUL and the slash, alone; every length.
SINGLE = [bytes([b]) for b in range(1, 256) if bytes([b]) not in (b"/", b".")]
LENGTHS = [b"L" * n for n in range(2, 256)]
ALL = sorted(set(LONG + SINGLE + LENGTHS + [b"...", b"..a", b"-rf", b"a\nb", b"a\\b", b"a\tb"]))


def refused(code, call, *arguments):
    try:
        call(*arguments)
    except OSError as error:
        assert error.errno == code, f"{call.__name__}: {error}"
    else:
        raise AssertionError(f"{call.__name__} of {arguments} worked")


def touch(path):
    os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600))


def make(top):
    files = os.path.join(top, b"files")
    os.mkdir(files)
    for name in ALL:
        path = os.path.join(files, name)
        touch(path)
        with open(path, "wb") as file:
            file.write(name)
    long = os.path.join(top, b"long")
    os.mkdir(long)
    a, b, c, d = (os.path.join(long, bytes([x]) * 255) for x in b"abcd")
    os.mkdir(a)
    os.symlink(b"t" * 255, b)
    os.mkfifo(c)
    os.rename(c, d)
    os.link(d, c)
    over = os.path.join(long, b"o" * 256)
    for call, arguments in [(touch, (over,)), (os.mkdir, (over,)), (os.symlink, (b"x", over)), (os.mkfifo, (over,)),
                            (os.rename, (d, over)), (os.link, (d, over)), (os.unlink, (over,)), (os.rmdir, (over,)),
                            (os.stat, (over,)), (os.rename, (over, d))]:
        refused(errno.ENAMETOOLONG, call, *arguments)
    refused(errno.ENOENT, os.stat, os.path.join(long, b"a" * 254))
    # A tree deeper than a path may be long, by way of the working directory.
    os.mkdir(os.path.join(top, b"deep"))
    os.chdir(os.path.join(top, b"deep"))
    for _ in range(40):
        os.mkdir(b"d" * 255)
        os.chdir(b"d" * 255)
    with open("bottom", "w") as file:
        file.write("here")
    os.chdir("/")
    verify(top)


def verify(top):
    files = os.path.join(top, b"files")
    got = sorted(os.listdir(files))
    assert got == ALL, f"{len(got)} names, not {len(ALL)}"
    for name in ALL:
        with open(os.path.join(files, name), "rb") as file:
            assert file.read() == name
    long = os.path.join(top, b"long")
    assert sorted(os.listdir(long)) == [bytes([x]) * 255 for x in b"abcd"]
    assert os.readlink(os.path.join(long, b"b" * 255)) == b"t" * 255
    assert os.stat(os.path.join(long, b"c" * 255)).st_nlink == 2
    os.chdir(os.path.join(top, b"deep"))
    for _ in range(40):
        os.chdir(b"d" * 255)
    assert open("bottom").read() == "here"
    os.chdir("/")


{"make": make, "verify": verify}[sys.argv[1]](os.fsencode(sys.argv[2]))
