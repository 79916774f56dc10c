"""Crash scenarios of the namespace: create, link, rename, unlink, directories, and their order."""

import errno
import mmap
import os
import stat

from case import content, is_prefix, table
from syscalls import EXCHANGE, NOREPLACE, WHITEOUT, rename2

CASES, scenario = table()


@scenario("C1: a created, written, fsynced file is there; its directory needs no sync")
def create_and_fsync(v):
    yield
    v.write("f", content(1), sync=True)
    yield
    assert v.read("f") == content(1)


@scenario("C1: fsync of a leaf makes every directory above it durable")
def fsync_in_new_directories(v):
    yield
    os.makedirs(v.path("a/b/c/d"))
    v.write("a/b/c/d/f", content(1), sync=True)
    yield
    assert v.read("a/b/c/d/f") == content(1)


@scenario("C1: fsync of a directory makes its new entries durable")
def fsync_of_a_directory(v):
    os.mkdir(v.path("d"))
    yield
    v.write("d/empty", b"")
    os.mkdir(v.path("d/sub"))
    v.fsync("d")
    yield
    assert v.list("d") == ["empty", "sub"]


@scenario("C2: a file fsynced and then renamed has the old name or the new, and its content")
def fsync_then_rename(v):
    yield
    v.write("old", content(1), sync=True)
    os.rename(v.path("old"), v.path("new"))
    yield
    assert v.list() in (["old"], ["new"])
    assert v.read(v.list()[0]) == content(1)


@scenario("C1: a file renamed and then fsynced has the new name only")
def rename_then_fsync(v):
    v.write("old", content(1))
    yield
    os.rename(v.path("old"), v.path("new"))
    v.fsync("new")
    yield
    assert v.list() == ["new"] and v.read("new") == content(1)


@scenario("C1: a link made before the fsync is there")
def link_then_fsync(v):
    v.write("a", content(1))
    yield
    os.link(v.path("a"), v.path("b"))
    v.fsync("a")
    yield
    assert v.stat("a").st_ino == v.stat("b").st_ino and v.stat("a").st_nlink == 2
    assert v.read("b") == content(1)


@scenario("C2: a link made after the fsync takes nothing away")
def fsync_then_link(v):
    yield
    v.write("a", content(1), sync=True)
    os.link(v.path("a"), v.path("b"))
    yield
    assert v.read("a") == content(1)
    assert v.stat("a").st_nlink == len(v.list())


@scenario("C1: an unlink is durable with another file's fsync")
def unlink_then_fsync_of_another(v):
    v.write("gone", content(1))
    v.write("kept", content(2))
    yield
    os.unlink(v.path("gone"))
    v.write("kept", b"x", at=0, sync=True)
    yield
    assert v.list() == ["kept"]


@scenario("C1: a name removed and made again is the new file")
def unlink_and_create_again(v):
    v.write("f", content(1))
    yield
    os.unlink(v.path("f"))
    v.write("f", content(2), sync=True)
    yield
    assert v.read("f") == content(2) and v.list() == ["f"]


@scenario("C1: one of two links removed, its name used by a new file")
def unlink_a_link_and_use_its_name(v):
    v.write("a", content(1))
    os.link(v.path("a"), v.path("b"))
    yield
    os.unlink(v.path("b"))
    v.write("b", content(2), sync=True)
    yield
    assert v.read("a") == content(1) and v.read("b") == content(2)
    assert v.stat("a").st_nlink == v.stat("b").st_nlink == 1


@scenario("C1: a file renamed away, a new one made in its place, the new one fsynced")
def rename_and_use_the_old_name(v):
    v.write("a", content(1))
    yield
    os.rename(v.path("a"), v.path("b"))
    v.write("a", content(2), sync=True)
    yield
    assert v.read("b") == content(1) and v.read("a") == content(2)


@scenario("C1: a rename over a file, then fsync: the new content, and the old inode is gone")
def rename_over_then_fsync(v):
    v.write("a", content(1))
    yield
    v.write("b", content(2))
    os.rename(v.path("b"), v.path("a"))
    v.fsync("a")
    yield
    assert v.list() == ["a"] and v.read("a") == content(2)


@scenario("C3: replacing by rename without a sync leaves the old content or the new", options="commit=0.02")
def replace_without_fsync(v):
    for number in range(20):
        v.write(f"f{number}", content(("old", number), 9000))
    yield
    for number in range(20):
        v.write(f"t{number}", content(("new", number), 9000))
        os.rename(v.path(f"t{number}"), v.path(f"f{number}"))
    yield
    for number in range(20):
        old, new = content(("old", number), 9000), content(("new", number), 9000)
        assert v.read(f"f{number}") in (old, new), f"f{number}: {len(v.read(f'f{number}'))} bytes"


@scenario("C3: the same, made durable by another file's fsync: the new content")
def replace_then_fsync_of_another(v):
    v.write("f", content(1))
    v.write("other", b"")
    yield
    v.write("t", content(2, 30_000))
    os.rename(v.path("t"), v.path("f"))
    v.write("other", b"x", sync=True)
    yield
    assert v.list() == ["f", "other"] and v.read("f") == content(2, 30_000)


@scenario("C3: replacing by a large file: the old content or the new")
def replace_by_a_large_file(v):
    v.write("f", content(1))
    v.write("other", b"")
    yield
    v.write("t", content(2, 6_000_000))
    os.rename(v.path("t"), v.path("f"))
    v.write("other", b"x", sync=True)
    yield
    assert v.read("f") == content(2, 6_000_000)


@scenario("C3: what was stored through a mapping, handed over by munmap, msync or close before the rename: the new content")
def replace_by_a_mapped_file(v):
    ways = ("munmap", "msync", "close")
    for way in ways:
        v.write(f"f-{way}", content(("old", way), 9000))
    v.write("other", b"")
    yield
    mappings = []
    for way in ways:
        handle = os.open(v.path("t"), os.O_CREAT | os.O_RDWR)
        os.ftruncate(handle, 9000)
        mapping = mmap.mmap(handle, 9000)
        mapping[:] = content(("new", way), 9000)
        {"munmap": mapping.close, "msync": mapping.flush, "close": lambda: os.close(handle)}[way]()
        os.rename(v.path("t"), v.path(f"f-{way}"))
        mappings.append((mapping, handle))
    v.write("other", b"x", sync=True)
    yield
    for way in ways:
        assert v.read(f"f-{way}") == content(("new", way), 9000), way


@scenario("C3: the same with the writeback cache, which close, fsync and fdatasync empty", options="writeback_cache,commit=3600",
          only_syncline=True)
def replace_with_the_writeback_cache(v):
    ways = {"close": os.close, "fsync": os.fsync, "fdatasync": os.fdatasync}
    for way in ways:
        v.write(f"f-{way}", content(("old", way), 9000))
    v.write("other", b"")
    yield
    for way, hand_over in ways.items():
        handle = os.open(v.path("t"), os.O_CREAT | os.O_WRONLY)
        os.write(handle, content(("new", way), 9000))
        hand_over(handle)
        os.rename(v.path("t"), v.path(f"f-{way}"))
    v.write("other", b"x", sync=True)
    yield
    for way in ways:
        assert v.read(f"f-{way}") == content(("new", way), 9000), way


@scenario("C1: a file moved to another directory, that one fsynced: in one of them only")
def move_between_directories(v):
    os.mkdir(v.path("a"))
    os.mkdir(v.path("b"))
    v.write("a/f", content(1))
    yield
    os.rename(v.path("a/f"), v.path("b/f"))
    v.fsync("b")
    yield
    assert v.list("a") == [] and v.read("b/f") == content(1)


@scenario("C1: a file moved, its old directory fsynced: in the new one")
def move_and_fsync_the_old_directory(v):
    os.mkdir(v.path("a"))
    os.mkdir(v.path("b"))
    v.write("a/f", content(1))
    yield
    os.rename(v.path("a/f"), v.path("b/f"))
    v.fsync("a")
    yield
    assert v.list("a") == [] and v.read("b/f") == content(1)


@scenario("C2: a move without a sync never makes two of one, or none", only_syncline=True)
def move_without_a_sync(v):
    os.mkdir(v.path("a"))
    os.mkdir(v.path("b"))
    v.write("a/f", content(1))
    v.write("x", b"")
    yield
    v.fsync("a")
    os.rename(v.path("a/f"), v.path("b/f"))
    v.fsync("x")
    os.rename(v.path("b/f"), v.path("a/g"))
    yield
    assert (v.list("a"), v.list("b")) in (([], ["f"]), (["g"], []))


@scenario("C1: a directory renamed, then its parent fsynced")
def rename_a_directory_fsync_parent(v):
    os.makedirs(v.path("p/d"))
    v.write("p/d/f", content(1))
    yield
    os.rename(v.path("p/d"), v.path("p/e"))
    v.fsync("p")
    yield
    assert v.list("p") == ["e"] and v.read("p/e/f") == content(1)


@scenario("C1: a directory renamed, then a file in it fsynced")
def rename_a_directory_fsync_child(v):
    os.makedirs(v.path("p/d"))
    os.mkdir(v.path("q"))
    v.write("p/d/f", content(1))
    yield
    os.rename(v.path("p/d"), v.path("q/e"))
    v.write("q/e/f", content(2), sync=True)
    yield
    assert v.list("p") == [] and v.list("q") == ["e"] and v.read("q/e/f") == content(2)
    assert v.stat("p").st_nlink == 2 and v.stat("q").st_nlink == 3


@scenario("C1, C2: a directory made and fsynced, a file in it linked elsewhere, crash: the directory is there")
def linked_out_of_a_new_directory(v):
    v.write("f", content(1))
    yield
    os.mkdir(v.path("d"))
    os.rename(v.path("f"), v.path("d/f"))
    v.fsync("d")
    os.link(v.path("d/f"), v.path("g"))
    v.fsync("g")
    yield
    assert v.list() == ["d", "g"] and v.list("d") == ["f"]
    assert v.read("d/f") == content(1) and v.stat("g").st_nlink == 2


@scenario("C1, C2: a directory made and fsynced, a file in it renamed out of it, crash: the directory is there")
def renamed_out_of_a_new_directory(v):
    v.write("f", content(1))
    yield
    os.mkdir(v.path("d"))
    v.write("d/g", content(2), sync=True)
    v.fsync("d")
    os.rename(v.path("d/g"), v.path("h"))
    yield
    assert v.stat("d") and stat.S_ISDIR(v.stat("d").st_mode)
    assert (v.list(), v.list("d")) in ((["d", "f"], ["g"]), (["d", "f", "h"], []))
    assert v.read("h" if v.exists("h") else "d/g") == content(2)


@scenario("C1: a file moved into a new directory, the old place taken by a new file, fsynced")
def moved_and_replaced(v):
    os.mkdir(v.path("a"))
    v.write("a/f", content(1))
    yield
    os.mkdir(v.path("b"))
    os.rename(v.path("a/f"), v.path("b/f"))
    v.write("a/f", content(2), sync=True)
    yield
    assert v.read("a/f") == content(2) and v.read("b/f") == content(1)


@scenario("C1: a directory moved, a new one under its old name, its child fsynced")
def directory_moved_and_replaced(v):
    os.makedirs(v.path("a/b"))
    v.write("a/b/f", content(1))
    yield
    os.rename(v.path("a/b"), v.path("c"))
    os.mkdir(v.path("a/b"))
    v.write("a/b/f", content(2), sync=True)
    yield
    assert v.read("c/f") == content(1) and v.read("a/b/f") == content(2)


@scenario("C1: two directories change places by three renames", only_syncline=True)
def directories_change_places(v):
    for name in "ab":
        os.mkdir(v.path(name))
        v.write(f"{name}/{name}", content(name))
    yield
    os.rename(v.path("a"), v.path("t"))
    os.rename(v.path("b"), v.path("a"))
    os.rename(v.path("t"), v.path("b"))
    v.fsync("a/b")
    yield
    assert v.list() == ["a", "b"] and v.list("a") == ["b"] and v.list("b") == ["a"]


@scenario("C1, C2: RENAME_EXCHANGE is done or not, never half", only_syncline=True)
def exchange(v):
    os.mkdir(v.path("a"))
    v.write("a/x", content(1))
    v.write("b", content(2))
    v.write("c", content(3))
    v.write("d", content(4))
    yield
    rename2(v.path("a"), v.path("b"), EXCHANGE)
    v.fsync("b/x")
    rename2(v.path("c"), v.path("d"), EXCHANGE)
    yield
    assert v.read("a") == content(2) and v.read("b/x") == content(1)
    assert (v.read("c"), v.read("d")) in ((content(3), content(4)), (content(4), content(3)))


@scenario("C1: RENAME_NOREPLACE and RENAME_WHITEOUT")
def noreplace_and_whiteout(v):
    v.write("a", content(1))
    v.write("b", content(2))
    yield
    try:
        rename2(v.path("a"), v.path("b"), NOREPLACE)
        raise AssertionError("it replaced")
    except OSError as error:
        assert error.errno == errno.EEXIST
    rename2(v.path("a"), v.path("c"), WHITEOUT)
    v.fsync("c")
    yield
    assert v.list() == ["a", "b", "c"] and v.read("c") == content(1)
    assert stat.S_ISCHR(v.stat("a").st_mode) and v.stat("a").st_rdev == 0


@scenario("C1: hard links over directories, one of them fsynced: all names")
def links_over_directories(v):
    for number in range(10):
        os.mkdir(v.path(f"d{number}"))
    v.write("d0/f", content(1))
    yield
    for number in range(1, 10):
        os.link(v.path("d0/f"), v.path(f"d{number}/f"))
    os.unlink(v.path("d5/f"))
    v.write("d3/f", content(2), sync=True)
    yield
    for number in range(10):
        assert v.exists(f"d{number}/f") == (number != 5)
    assert v.stat("d0/f").st_nlink == 9 and v.read("d9/f") == content(2)


@scenario("C1: a directory removed and made again")
def rmdir_and_mkdir(v):
    os.mkdir(v.path("d"))
    v.write("d/f", content(1))
    yield
    os.unlink(v.path("d/f"))
    os.rmdir(v.path("d"))
    os.mkdir(v.path("d"), 0o700)
    v.fsync("d")
    yield
    assert v.list("d") == [] and stat.S_IMODE(v.stat("d").st_mode) == 0o700


@scenario("C1: a symbolic link is whole: its target is never empty")
def symlinks(v):
    os.mkdir(v.path("d"))
    yield
    v.target = "t" * (1000 if v.backend == "xfs" else 4095)
    os.symlink(v.target, v.path("d/long"))
    os.symlink("x", v.path("d/short"))
    v.fsync("d")
    os.symlink("y", v.path("d/later"))
    yield
    assert os.readlink(v.path("d/long")) == v.target and os.readlink(v.path("d/short")) == "x"
    assert not v.exists("d/later") or os.readlink(v.path("d/later")) == "y"


@scenario("C1: special files keep their type and number")
def special_files(v):
    os.mkdir(v.path("d"))
    yield
    os.mkfifo(v.path("d/fifo"), 0o600)
    os.mknod(v.path("d/socket"), stat.S_IFSOCK | 0o755)
    os.mknod(v.path("d/character"), stat.S_IFCHR | 0o666, os.makedev(1, 3))
    os.mknod(v.path("d/block"), stat.S_IFBLK | 0o660, os.makedev(259, 70_000))
    v.fsync("d")
    yield
    assert stat.S_ISFIFO(v.stat("d/fifo").st_mode) and stat.S_ISSOCK(v.stat("d/socket").st_mode)
    assert stat.S_ISCHR(v.stat("d/character").st_mode) and v.stat("d/character").st_rdev == os.makedev(1, 3)
    assert stat.S_ISBLK(v.stat("d/block").st_mode) and v.stat("d/block").st_rdev == os.makedev(259, 70_000)


@scenario("C1: mode, owner and times are durable with another file's fsync")
def attributes(v):
    v.write("f", content(1))
    v.write("other", b"")
    yield
    os.chmod(v.path("f"), 0o4711)
    os.chown(v.path("f"), 1234, 5678)
    os.chmod(v.path("f"), 0o6711)
    os.utime(v.path("f"), ns=(1_000_000_001, 2_000_000_002))
    v.write("other", b"x", sync=True)
    yield
    info = v.stat("f")
    assert stat.S_IMODE(info.st_mode) == 0o6711 and (info.st_uid, info.st_gid) == (1234, 5678)
    assert info.st_mtime_ns == 2_000_000_002


@scenario("C1: extended attributes set, replaced and removed")
def xattrs(v):
    v.write("f", b"")
    os.setxattr(v.path("f"), "user.replaced", b"old")
    os.setxattr(v.path("f"), "user.removed", b"old")
    yield
    os.setxattr(v.path("f"), "user.new", b"new")
    os.setxattr(v.path("f"), "user.replaced", b"n" * 3000)
    os.removexattr(v.path("f"), "user.removed")
    v.fsync("f")
    yield
    assert sorted(n for n in os.listxattr(v.path("f")) if n.startswith("user")) == ["user.new", "user.replaced"]
    assert os.getxattr(v.path("f"), "user.replaced") == b"n" * 3000


@scenario("C2: an extended attribute replaced without a sync has the old value or the new")
def xattr_replaced_without_a_sync(v):
    v.write("f", b"")
    os.setxattr(v.path("f"), "user.a", b"old")
    yield
    os.setxattr(v.path("f"), "user.a", b"new" * 300)
    yield
    assert os.getxattr(v.path("f"), "user.a") in (b"old", b"new" * 300)


@scenario("C1: an unlinked but open file is gone after the crash, and its space is free again")
def unlinked_but_open(v):
    v.write("f", content(1, 8 << 20))
    v.write("other", b"")
    yield
    before = os.statvfs(v.top).f_bfree
    handle = v.open("f")
    os.unlink(v.path("f"))
    os.pwrite(handle, content(2), 0)
    os.fsync(handle)
    v.before = before
    yield
    assert v.list() == ["other"]
    v.unmount()
    v.mount()
    free = os.statvfs(v.top).f_bfree
    assert free * os.statvfs(v.top).f_frsize > v.before * os.statvfs(v.top).f_frsize + (6 << 20), "space is not free"


@scenario("C1: fsync of a file without a name does not bring it back")
def unlinked_then_fsynced(v):
    v.write("f", content(1))
    yield
    handle = v.open("f")
    os.unlink(v.path("f"))
    os.fsync(handle)
    yield
    assert v.list() == []


@scenario("C2: of creates without a sync a prefix is left", options="commit=0.02")
def creates_in_order(v):
    os.mkdir(v.path("d"))
    yield
    for number in range(400):
        v.write(f"d/{number}", b"")
    yield
    done = [str(number) for number in range(400)]
    assert is_prefix(done, v.list("d")), f"{len(v.list('d'))} of 400, not the first ones"


@scenario("C2: of creates a prefix is left that contains what a sync covered")
def creates_in_order_after_a_sync(v):
    os.mkdir(v.path("d"))
    os.mkdir(v.path("e"))
    yield
    for number in range(300):
        v.write(f"{'de'[number % 2]}/{number}", b"", sync=number == 150)
    yield
    there = v.list("d") + v.list("e")
    assert is_prefix([str(number) for number in range(300)], there) and len(there) >= 151


@scenario("C2: link, rename and unlink without a sync are undone from the end only", options="commit=0.02")
def mixed_operations_in_order(v):
    os.mkdir(v.path("d"))
    v.write("d/0", content(0))
    yield
    # Each step adds the next name, then takes away the one before: there are always one or two, neighbours.
    for number in range(1, 300):
        if number % 2:
            os.link(v.path(f"d/{number - 1}"), v.path(f"d/{number}"))
            os.unlink(v.path(f"d/{number - 1}"))
        else:
            os.rename(v.path(f"d/{number - 1}"), v.path(f"d/{number}"))
    yield
    names = sorted(int(n) for n in v.list("d"))
    assert len(names) == 1 or (len(names) == 2 and names[0] + 1 == names[1] and names[1] % 2 == 1), names
    assert v.read(f"d/{names[-1]}") == content(0) and v.stat(f"d/{names[0]}").st_nlink == len(names)


@scenario("C1: a tree of 500 files, fsync of the root: all names", only_syncline=True)
def fsync_of_the_root(v):
    yield
    for number in range(500):
        os.makedirs(v.path(f"d{number % 10}"), exist_ok=True)
        v.write(f"d{number % 10}/{number}", content(number, number * 7))
    v.fsync(".")
    yield
    for number in range(500):
        assert v.read(f"d{number % 10}/{number}") == content(number, number * 7)


@scenario("C1: mount option dirsync: a name is durable when the call returns", options="dirsync,commit=3600", only_syncline=True)
def dirsync_option(v):
    yield
    os.mkdir(v.path("d"))
    v.write("d/f", b"")
    os.rename(v.path("d/f"), v.path("d/g"))
    yield
    assert v.list("d") == ["g"]
