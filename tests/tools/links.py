"""Many links to one inode.

usage: links.py make|verify|remove DIRECTORY
"""

import os
import sys

LINKS = 65_000
DIRECTORIES = 10


def path(top, number):
    return f"{top}/{number % DIRECTORIES}/{number}"


def make(top):
    for number in range(DIRECTORIES):
        os.mkdir(f"{top}/{number}")
    with open(path(top, 0), "w") as file:
        file.write("one inode")
    for number in range(1, LINKS):
        os.link(path(top, number - 1), path(top, number))
    assert os.stat(path(top, 0)).st_nlink == LINKS
    verify(top)


def verify(top):
    inode = os.stat(path(top, 0)).st_ino
    for directory in range(DIRECTORIES):
        with os.scandir(f"{top}/{directory}") as entries:
            found = {entry.name: entry.inode() for entry in entries}
        assert len(found) == LINKS // DIRECTORIES, f"{len(found)} links in directory {directory}"
        assert set(found.values()) == {inode}, "a link leads elsewhere"
    assert os.stat(path(top, LINKS - 1)).st_nlink == LINKS
    assert open(path(top, LINKS - 1)).read() == "one inode"


def remove(top):
    with open(path(top, 0)) as last:
        for number in range(LINKS):
            os.unlink(path(top, number))
            if number % 10_000 == 0:
                assert os.fstat(last.fileno()).st_nlink == LINKS - number - 1
        assert os.fstat(last.fileno()).st_nlink == 0
        assert last.read() == "one inode", "an open file without a name is gone"
    for number in range(DIRECTORIES):
        os.rmdir(f"{top}/{number}")


{"make": make, "verify": verify, "remove": remove}[sys.argv[1]](sys.argv[2])
