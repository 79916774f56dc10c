"""Paths in the manner of pathlib."""

from __future__ import annotations

import os
import stat
import time
from pathlib import Path

import pytest
import syncline


def tree(root: Path | syncline.VolumePath) -> None:
    """The same tree in a volume or on the host."""
    (root / "a" / "b" / "c").mkdir(parents=True)
    for name in ("x.txt", "y.bin", "a/x.txt", "a/b/x.txt", "a/b/c/z.txt", "a/.hidden", "a/b/[odd].txt"):
        (root / name).write_text(name)


PATTERNS = [
    "*", "*.txt", "a/*", "*/*.txt", "**/*.txt", "a/**/*.txt", "a/b/x.txt", "**/[xz].txt", "missing/*", "a/?.txt",
    "**/c", "**/b/*", "x.txt/*", "a/.*", "**/x.txt",
]  # fmt: skip


@pytest.mark.parametrize("pattern", PATTERNS)
def test_glob_finds_what_pathlib_finds(volume: syncline.Volume, tmp_path: Path, pattern: str) -> None:
    host = tmp_path / "host"
    host.mkdir()
    tree(host)
    tree(volume.path())
    theirs = sorted(found.relative_to(host).as_posix() for found in host.glob(pattern))
    assert sorted(str(found.relative_to("/")) for found in volume.path().glob(pattern)) == theirs


def test_rglob_and_wrong_patterns(volume: syncline.Volume) -> None:
    tree(volume.path())
    assert len(list((volume / "a").rglob("*.txt"))) == 4
    for pattern, kind in (("", ValueError), ("/x", NotImplementedError)):
        with pytest.raises(kind):
            list(volume.path().glob(pattern))


def test_parts_are_those_of_pathlib(volume: syncline.Volume) -> None:
    path = volume / "dir" / "file.tar.gz"
    assert str(path) == path.as_posix() == "/dir/file.tar.gz"
    assert (path.name, path.stem, path.suffix, path.suffixes) == ("file.tar.gz", "file.tar", ".gz", [".tar", ".gz"])
    assert path.parts == ("/", "dir", "file.tar.gz")
    assert path.parent == volume.path("dir") and path.parents[-1] == volume.path()
    assert path.with_name("x") == volume / "dir" / "x"
    assert str(path.with_suffix(".x")) == "/dir/file.tar.x"
    assert path.with_stem("y").name == "y.gz"
    assert path.relative_to("/dir").as_posix() == "file.tar.gz" and path.is_relative_to(volume / "dir")
    assert path.match("*.gz") and path.is_absolute()
    assert volume.path() / "/abs" == volume / "abs" == volume.path("//abs")
    assert path.joinpath("a", "b") == path / "a" / "b"
    assert len({path, volume / "dir/file.tar.gz"}) == 1
    assert sorted([volume / "b", volume / "a"])[0].name == "a"
    assert path != "/dir/file.tar.gz"
    with pytest.raises(TypeError):
        os.fspath(path)  # type: ignore[call-overload]


def test_content_and_attributes(volume: syncline.Volume) -> None:
    path = volume / "file"
    now = time.time()
    assert path.write_bytes(memoryview(b"12345")) == 5
    told = path.stat()
    assert stat.S_ISREG(told.st_mode) and told.st_size == 5 and told.st_nlink == 1
    assert abs(told.st_mtime - now) < 60 and told.st_mtime_ns // 10**9 == int(told.st_mtime)
    assert told.st_blksize == 4096 and told.st_rdev == 0
    path.chmod(0o600)
    path.chown(uid=5)
    path.utime(ns=(-1, 1_500_000_000_000_000_001))
    told = path.stat()
    assert stat.S_IMODE(told.st_mode) == 0o600 and told.st_uid == 5 and told.st_gid == 0
    assert (told.st_atime_ns, told.st_mtime_ns) == (-1, 1_500_000_000_000_000_001)
    path.utime()
    assert abs(path.stat().st_mtime - now) < 60
    assert path.write_text("ä\n", encoding="utf-8") == 2
    assert path.read_bytes() == b"\xc3\xa4\n" and path.read_text(encoding="utf-8") == "ä\n"
    assert path.getxattr("user.a") is None
    path.setxattr("user.a", b"value")
    assert path.listxattr() == ["user.a"] and path.getxattr("user.a") == b"value"
    path.removexattr("user.a")
    assert path.listxattr() == []


def test_directories_names_and_links(volume: syncline.Volume) -> None:
    root = volume.path()
    with pytest.raises(FileNotFoundError):
        (root / "a" / "b").mkdir()
    (root / "a" / "b").mkdir(parents=True)
    (root / "a" / "b").mkdir(exist_ok=True)
    (root / "private").mkdir(mode=0o700)
    assert stat.S_IMODE((root / "private").stat().st_mode) == 0o700
    file = root / "a" / "file"
    file.touch()
    with pytest.raises(FileExistsError):
        file.touch(exist_ok=False)
    with pytest.raises(FileExistsError):
        file.mkdir(exist_ok=True)
    (root / "soft").symlink_to("a/file")
    (root / "hard").hardlink_to(file)
    assert (root / "soft").is_symlink() and (root / "soft").is_file()
    assert (root / "soft").readlink().as_posix() == "a/file"
    assert (root / "soft").resolve() == file and (root / "a" / ".." / "soft").resolve() == file
    assert (root / "hard").samefile(file) and file.stat().st_nlink == 2
    assert (root / "soft").lstat().st_ino != file.stat().st_ino
    (root / "broken").symlink_to("nowhere")
    assert not (root / "broken").exists() and (root / "broken").exists(follow_symlinks=False)
    file.write_text("old")
    (root / "new").write_text("new")
    assert (root / "new").replace(file) == file
    assert file.read_text() == "new" and not (root / "new").exists()
    (root / "other").write_text("other")
    (root / "other").exchange(file)
    assert file.read_text() == "other" and (root / "other").read_text() == "new"
    (root / "missing").unlink(missing_ok=True)
    with pytest.raises(FileNotFoundError):
        (root / "missing").unlink()
    (root / "a").rmtree()
    assert not (root / "a").exists() and not (root / "a" / "b").is_dir()
    assert sorted(path.name for path in root.iterdir()) == ["broken", "hard", "other", "private", "soft"]


def test_names_that_are_not_unicode(volume: syncline.Volume) -> None:
    name = os.fsdecode(b"not \xff utf-8")
    (volume / name).write_text("x")
    assert [path.name for path in volume.path().iterdir()] == [name]
    with volume.open(b"not \xff utf-8") as file:
        assert file.read() == "x"


def test_paths_of_another_volume_are_refused(volume: syncline.Volume) -> None:
    with syncline.Volume.in_memory(64 << 20) as other:
        with pytest.raises(ValueError, match="another volume"):
            volume.open(other / "a", "w")
        with pytest.raises(ValueError, match="another volume"):
            (volume / "a").rename(other / "b")
        assert (volume / "a") != (other / "a")
