"""A directory of many files: create, list, seekdir, removal while others list it.

usage: big_directory.py create|list|seek|remove DIRECTORY FILES

libc's readdir, telldir and seekdir are called directly, because Python has no seekdir.
"""

import ctypes
import multiprocessing
import os
import random
import sys
import time

libc = ctypes.CDLL(None, use_errno=True)


class Entry(ctypes.Structure):
    _fields_ = [
        ("ino", ctypes.c_uint64),
        ("off", ctypes.c_int64),
        ("reclen", ctypes.c_ushort),
        ("type", ctypes.c_ubyte),
        ("name", ctypes.c_char * 256),
    ]


libc.opendir.restype = ctypes.c_void_p
libc.readdir.restype = ctypes.POINTER(Entry)
libc.readdir.argtypes = libc.telldir.argtypes = libc.closedir.argtypes = libc.rewinddir.argtypes = [ctypes.c_void_p]
libc.telldir.restype = ctypes.c_long
libc.seekdir.argtypes = [ctypes.c_void_p, ctypes.c_long]


def name_of(number):
    """Names of several lengths, the longest 255 bytes for one in a thousand."""
    return f"{number:07}" + "x" * (248 if number % 1000 == 0 else number % 40)


def open_directory(path):
    handle = libc.opendir(os.fsencode(path))
    assert handle, os.strerror(ctypes.get_errno())
    return handle


def read_entry(handle):
    ctypes.set_errno(0)
    entry = libc.readdir(handle)
    if not entry:
        assert ctypes.get_errno() == 0, os.strerror(ctypes.get_errno())
        return None
    return entry.contents.name


def names(handle):
    while (name := read_entry(handle)) is not None:
        yield name


def create(path, files):
    os.mkdir(path)
    begun = time.monotonic()
    for number in range(files):
        os.close(os.open(f"{path}/{name_of(number)}", os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600))
    print(f"{files / (time.monotonic() - begun):.0f} creates/s")


def list_all(path, files):
    begun = time.monotonic()
    got = os.listdir(path)
    took = time.monotonic() - begun
    assert len(got) == files, f"{len(got)} entries, not {files}"
    assert set(got) == {name_of(n) for n in range(files)}, "names differ"
    for number in random.Random(1).sample(range(files), 2000):
        os.stat(f"{path}/{name_of(number)}")
    assert not os.path.exists(f"{path}/{name_of(files)}")
    print(f"listed in {took:.2f} s")


def seek(path, files):
    handle = open_directory(path)
    position, places = libc.telldir(handle), []
    for name in names(handle):
        places.append((position, name))
        position = libc.telldir(handle)
    assert len(places) == files + 2, f"{len(places)} entries with . and .."
    choose = random.Random(2)
    for _ in range(2000):
        index = choose.randrange(len(places))
        libc.seekdir(handle, places[index][0])
        # The entry at the cookie, and the two behind it.
        for _, want in places[index : index + 3]:
            got = read_entry(handle)
            assert got == want, f"after seekdir: {got}, not {want}"
    libc.rewinddir(handle)
    assert len(list(names(handle))) == files + 2, "after rewinddir"
    libc.closedir(handle)


def list_until(path, stays, done):
    """At least once, then until told to stop."""
    while True:
        handle = open_directory(path)
        seen = list(names(handle))
        libc.closedir(handle)
        assert len(seen) == len(set(seen)), "an entry was listed twice"
        missing = stays - set(seen)
        assert not missing, f"{len(missing)} files were not listed, {next(iter(missing))} among them"
        if done.is_set():
            return


def remove(path, files):
    """One thread removes some files, in no order; others list meanwhile and must see each of the rest exactly once."""
    step = 20 if os.environ.get("SCALE") == "full" else 40
    goes = [name_of(n) for n in range(1, files, step)]
    random.Random(3).shuffle(goes)
    stays = {os.fsencode(name_of(n)) for n in range(files) if n % step != 1}
    # Processes, not threads: Python's lock would slow the removals down.
    context = multiprocessing.get_context("fork")
    done = context.Event()
    listers = [context.Process(target=list_until, args=(path, stays, done)) for _ in range(2)]
    for lister in listers:
        lister.start()
    begun = time.monotonic()
    for name in goes:
        os.unlink(f"{path}/{name}")
    took = time.monotonic() - begun
    done.set()
    for lister in listers:
        lister.join()
        assert lister.exitcode == 0, "a lister missed a file, or saw one twice"
    assert {os.fsencode(n) for n in os.listdir(path)} == stays, "what is left differs"
    # Removing what readdir returns, as rm -r does.
    handle = open_directory(path)
    for name in names(handle):
        if name not in (b".", b".."):
            os.unlink(os.path.join(os.fsencode(path), name))
    libc.closedir(handle)
    os.rmdir(path)
    print(f"{len(goes) / took:.0f} unlinks/s under two listers")


action, path, files = sys.argv[1:]
{"create": create, "list": list_all, "seek": seek, "remove": remove}[action](path, int(files))
