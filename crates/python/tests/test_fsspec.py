"""fsspec: its own abstract test-suite, URLs, transactions."""

from __future__ import annotations

import errno
import os
import pickle
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import syncline
from conftest import MIB

fsspec = pytest.importorskip("fsspec", reason="fsspec is not installed")
abstract = pytest.importorskip("fsspec.tests.abstract", reason="this fsspec has no abstract tests")


@pytest.fixture(autouse=True)
def no_cached_instances() -> Iterator[None]:
    yield
    from syncline.fsspec import SynclineFileSystem

    for fs in list(SynclineFileSystem._cache.values()):
        fs.close()
    SynclineFileSystem.clear_instance_cache()


class Fixtures(abstract.AbstractFixtures):  # type: ignore[misc, name-defined]
    @pytest.fixture
    def fs(self) -> Iterator[Any]:
        from syncline.fsspec import SynclineFileSystem

        with syncline.Volume.in_memory(256 * MIB) as volume:
            yield SynclineFileSystem(volume=volume, skip_instance_cache=True)

    @pytest.fixture
    def fs_path(self) -> str:
        return "/work"

    @pytest.fixture
    def fs_join(self) -> Callable[..., str]:
        return lambda *names: "/".join(names)


class TestCopy(abstract.AbstractCopyTests, Fixtures):  # type: ignore[misc, name-defined]
    pass


class TestGet(abstract.AbstractGetTests, Fixtures):  # type: ignore[misc, name-defined]
    pass


class TestPut(abstract.AbstractPutTests, Fixtures):  # type: ignore[misc, name-defined]
    pass


class TestOpen(abstract.AbstractOpenTests, Fixtures):  # type: ignore[misc, name-defined]
    pass


class TestPipe(abstract.AbstractPipeTests, Fixtures):  # type: ignore[misc, name-defined]
    pass


@pytest.fixture
def fs(image: Path) -> Any:
    syncline.Volume.create(image, 64 * MIB).close()
    return fsspec.filesystem("syncline", image=str(image))


def test_urls_name_the_image_and_the_path(image: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    syncline.Volume.create(image, 64 * MIB).close()
    with fsspec.open(f"syncline://{image}/dir/a.txt", "w") as file:
        file.write("hello")
    monkeypatch.chdir(tmp_path)
    with fsspec.open("syncline://disk.img/dir/a.txt") as file:
        assert file.read() == b"hello"
    fs, path = fsspec.url_to_fs("syncline://disk.img/dir")
    assert path == "/dir" and fs.ls(path, detail=False) == ["/dir/a.txt"]
    assert fs.unstrip_protocol("/dir/a.txt") == f"syncline://{image}/dir/a.txt"
    assert fs.cat(fs.unstrip_protocol("/dir/a.txt")) == b"hello"
    root, path = fsspec.url_to_fs("syncline://disk.img")
    assert path == "/" and root is fs
    with pytest.raises(FileNotFoundError, match="no image of a volume"):
        fsspec.open("syncline://missing.img/a").open()
    with pytest.raises(ValueError, match="one of the two"):
        fsspec.filesystem("syncline")


def test_a_volume_that_is_open_is_shared_and_a_closed_one_opened_again(image: Path) -> None:
    with syncline.Volume.create(image, 64 * MIB) as volume:
        (volume / "a").write_text("shared")
        fs = fsspec.filesystem("syncline", image=image)
        assert fs.volume is volume and fs.cat("/a") == b"shared"
        fs.close()
        assert not volume.closed
    assert fs.cat("/a") == b"shared"
    fs.close()
    with syncline.Volume(image) as volume:
        assert (volume / "a").exists()


def test_information(fs: Any) -> None:
    fs.pipe("/dir/a", b"12345")
    info = fs.info("/dir/a")
    assert (info["name"], info["size"], info["type"]) == ("/dir/a", 5, "file")
    assert info["mode"] & 0o777 == 0o644
    assert fs.info("/dir")["type"] == "directory" and fs.info("/")["name"] == "/"
    assert abs((fs.modified("/dir/a") - fs.created("/dir/a")).total_seconds()) < 60
    assert fs.ls("/dir/a", detail=False) == ["/dir/a"]
    assert [one["name"] for one in fs.ls("/")] == ["/dir"]
    with pytest.raises(FileNotFoundError):
        fs.ls("/missing")
    fs.volume.path("/link").symlink_to("dir/a")
    fs.volume.path("/broken").symlink_to("nowhere")
    assert fs.info("/link")["destination"] == "dir/a" and fs.info("/link")["size"] == 5
    assert fs.info("/broken")["type"] == "link"
    assert fs.exists("/link") and not fs.exists("/broken") and fs.lexists("/broken")
    key = fs.ukey("/dir/a")
    fs.pipe("/dir/a", b"67890")
    assert fs.ukey("/dir/a") != key
    assert fs.cat_file("/dir/a", 1, -1) == b"789" and fs.cat_file("/dir/a", -2) == b"90"
    assert fs.cat_ranges(["/dir/a"] * 2, [0, 3], [2, 5]) == [b"67", b"90"]
    assert fs.du("/dir") == 5 and sorted(fs.find("/")) == ["/broken", "/dir/a", "/link"]
    assert fs.glob("/**/a") == ["/dir/a"]


def test_names_change(fs: Any) -> None:
    fs.pipe({"/a": b"1", "/dir/b": b"2"})
    fs.mv("/a", "/new/c")
    assert fs.cat("/new/c") == b"1" and not fs.exists("/a")
    inode = fs.info("/dir/b")["ino"]
    fs.mv("/dir/b", "/new/")
    assert fs.info("/new/b")["ino"] == inode
    fs.mv("/new", "/other", recursive=True)
    assert sorted(fs.find("/")) == ["/other/b", "/other/c"]
    with pytest.raises(OSError) as caught:
        fs.rm("/other")
    assert caught.value.errno == errno.ENOTEMPTY
    with pytest.raises(FileNotFoundError):
        fs.rm("/missing")
    fs.rm("/other", recursive=True)
    fs.touch("/t")
    fs.rm("/", recursive=True)
    assert fs.ls("/") == []
    with pytest.raises(FileExistsError):
        fs.pipe_file("/x", b"1")
        fs.pipe_file("/x", b"2", mode="create")
    assert fs.cat("/x") == b"1"


def test_without_auto_mkdir_directories_have_to_be_there(image: Path) -> None:
    with syncline.Volume.create(image, 64 * MIB) as volume:
        fs = fsspec.filesystem("syncline", volume=volume, auto_mkdir=False)
        with pytest.raises(FileNotFoundError):
            fs.pipe("/dir/a", b"1")
        with pytest.raises(FileNotFoundError):
            fs.mkdir("/a/b", create_parents=False)


def test_a_durable_filesystem_syncs_what_it_writes(image: Path, tmp_path: Path) -> None:
    (tmp_path / "host").write_bytes(b"host")
    with syncline.Volume.create(image, 64 * MIB, commit_interval=3600) as volume:
        for durable in (False, True):
            fs = fsspec.filesystem("syncline", volume=volume, durable=durable)
            for act in (
                lambda: fs.pipe("/a", b"1"),
                lambda: fs.put(str(tmp_path / "host"), "/b"),
                lambda: fs.cp("/b", "/c"),
                lambda: _write(fs, "wb"),
                lambda: _write(fs, "ab"),
                lambda: _write(fs, "r+b"),
            ):
                before = volume.stats().device_flushes
                act()
                assert (volume.stats().device_flushes > before) == durable


def _write(fs: Any, mode: str) -> None:
    with fs.open("/d", mode) as file:
        file.write(b"content")


def test_a_transaction_shows_all_its_files_together(fs: Any) -> None:
    fs.pipe("/a", b"old")
    with fs.transaction:
        fs.pipe("/a", b"new")
        with fs.open("/dir/b", "wb") as file:
            file.write(b"b")
        with fs.open("/a2", "w") as text:
            text.write("text")
        assert fs.cat("/a") == b"old" and not fs.exists("/dir/b")
    assert fs.cat("/a") == b"new" and fs.cat("/dir/b") == b"b" and fs.cat("/a2") == b"text"
    with pytest.raises(KeyError):
        with fs.transaction:
            fs.pipe("/a", b"newer")
            raise KeyError
    assert fs.cat("/a") == b"new"
    assert sorted(fs.find("/", withdirs=False)) == ["/a", "/a2", "/dir/b"]
    fs.pipe("/c", b"outside")
    assert fs.cat("/c") == b"outside"


def test_a_tree_goes_in_and_out(fs: Any, tmp_path: Path) -> None:
    source = tmp_path / "source"
    (source / "deep" / "er").mkdir(parents=True)
    for number in range(50):
        (source / "deep" / f"{number}").write_bytes(os.urandom(number * 1000))
    fs.put(str(source), "/tree", recursive=True)
    fs.get("/tree", str(tmp_path / "back"), recursive=True)
    for number in range(50):
        name = Path("deep") / f"{number}"
        assert (tmp_path / "back" / name).read_bytes() == (source / name).read_bytes()


def test_a_filesystem_is_pickled_by_its_image(fs: Any) -> None:
    fs.pipe("/a", b"1")
    assert pickle.loads(pickle.dumps(fs)) is fs


def test_an_image_that_cannot_be_written_is_opened_for_reading(image: Path) -> None:
    if os.geteuid() == 0:
        pytest.skip("root may write everything")
    with syncline.Volume.create(image, 64 * MIB) as volume:
        (volume / "a").write_text("1")
    image.chmod(0o444)
    fs = fsspec.filesystem("syncline", image=image)
    assert fs.cat("/a") == b"1" and fs.volume.read_only
