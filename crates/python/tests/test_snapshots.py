"""Snapshots: what they show, how long, and what is refused."""

from __future__ import annotations

import datetime
import errno
import gc
import random
import sqlite3
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
import syncline
from conftest import MIB


@pytest.fixture
def kept(image: Path) -> Iterator[syncline.Volume]:
    """A volume in an image file that can have snapshots."""
    with syncline.Volume.create(image, 64 * MIB) as volume:
        yield volume


def view(volume: syncline.Volume) -> dict[str, bytes]:
    return {str(path): path.read_bytes() for path in volume.path().rglob("*") if path.is_file()}


def refused_with(number: int, caught: pytest.ExceptionInfo[OSError]) -> bool:
    return caught.value.errno == number and bool(caught.value.strerror)


# Shows: C10.
def test_snapshots_show_what_was_there_also_after_the_volume_was_opened_again(image: Path) -> None:
    random.seed(7)
    shown: dict[str, dict[str, bytes]] = {}
    syncline.Volume.create(image, 64 * MIB).close()
    for round_ in range(6):
        with syncline.Volume(image) as volume:
            for _ in range(20):
                path = volume / f"f{random.randrange(8)}"
                if random.random() < 0.2:
                    path.unlink(missing_ok=True)
                    continue
                with path.open("ab") as file:
                    file.write(random.randbytes(random.randrange(30_000)))
                    if random.random() < 0.5:
                        file.sync()
            name = f"s{round_}"
            volume.snapshot(name)
            shown[name] = view(volume)
            for name, wanted in shown.items():
                with volume.at(name) as then:
                    assert view(then) == wanted, name
            assert [snapshot.name for snapshot in volume.snapshots()] == list(shown)
            if round_ == 3:
                volume.delete_snapshot("s1")
                del shown["s1"]
                volume.reclaim()
    with syncline.Volume(image, read_only=True) as volume, volume.at("s2") as then:
        assert view(then) == shown["s2"]


def test_what_a_snapshot_is(kept: syncline.Volume) -> None:
    before = datetime.datetime.now(datetime.timezone.utc)
    one, two = kept.snapshot("one"), kept.snapshot("zwei \u2260 1")
    after = datetime.datetime.now(datetime.timezone.utc)
    assert kept.snapshots() == [one, two]
    assert before - datetime.timedelta(seconds=1) <= one.made <= two.made <= after + datetime.timedelta(seconds=1)
    assert one.number < two.number and one.uuid != two.uuid and one.uuid.version == 4


def test_a_held_snapshot_stays_and_a_usage_is_what_a_deletion_gives_back(kept: syncline.Volume) -> None:
    (kept / "f").write_bytes(random.randbytes(3 * MIB))
    kept.snapshot("one")
    kept.snapshot("two")
    (kept / "f").unlink()
    kept.hold_snapshot("one")
    assert [snapshot.held for snapshot in kept.snapshots()] == [True, False]
    with pytest.raises(OSError) as caught:
        kept.delete_snapshot("one")
    assert refused_with(errno.EBUSY, caught)
    kept.release_snapshot("one")
    for call in (kept.hold_snapshot, kept.release_snapshot, kept.snapshot_usage):
        with pytest.raises(FileNotFoundError):
            call("three")
    alone = kept.snapshot_usage(["one"]) + kept.snapshot_usage("two")
    together = kept.snapshot_usage(snapshot.name for snapshot in kept.snapshots())
    assert alone < MIB and together >= 3 * MIB and kept.snapshot_usage([]) == 0

    def free() -> int:
        kept.reclaim()
        return kept.stats().free_bytes

    before = free()
    kept.delete_snapshot("one")
    kept.delete_snapshot("two")
    assert free() - before == together


def test_a_difference_is_told_by_path_and_kind(kept: syncline.Volume) -> None:
    for name in ("changed", "gone", "old", "mode"):
        (kept / name).write_text(name)
    kept.snapshot("one")
    assert kept.diff("one") == []
    (kept / "changed").write_text("other")
    (kept / "gone").unlink()
    (kept / "old").rename("/n\udcff")
    (kept / "mode").chmod(0o600)
    wanted = [
        syncline.Change("modified", "changed", content=True),
        syncline.Change("removed", "gone"),
        syncline.Change("modified", "mode", attributes=True),
        syncline.Change("renamed", "n\udcff", "old"),
    ]
    assert kept.diff("one") == wanted
    kept.snapshot("two")
    assert kept.diff("one", "two", content=True) == wanted
    assert [snapshot.name for snapshot in kept.snapshots()] == ["one", "two"]
    for older, newer in (("three", None), ("one", "three")):
        with pytest.raises(FileNotFoundError):
            kept.diff(older, newer)


# Shows: C12.
def test_heads_go_on_on_their_own_also_after_the_volume_was_opened_again(image: Path) -> None:
    with syncline.Volume.create(image, 64 * MIB) as volume:
        (volume / "f").write_text("first")
        volume.snapshot("one")
        made = [volume.clone_snapshot("one", name) for name in ("left", "right")]
        assert [(head.name, head.parent, head.is_default) for head in made] == [
            ("left", "one", False),
            ("right", "one", False),
        ]
        own = [head for head in volume.heads() if head.is_default]
        assert len(own) == 1 and set(volume.heads()) == {*own, *made}
        left, right = volume.head("left"), volume.head("right")
        assert "head 'left'" in repr(left) and not left.read_only
        for head, text in ((left, "L"), (right, "R")):
            with head.open("f", "w") as file:
                file.write(text)
                file.sync()
        assert [(view / "f").read_text() for view in (volume, left, right)] == ["first", "L", "R"]
        for name in ("left", own[0].name):
            with pytest.raises(OSError) as caught:
                volume.delete_head(name)
            assert refused_with(errno.EBUSY, caught)
        with pytest.raises(ValueError, match="head=") as refused:
            left.rollback("one")
        assert "left" in str(refused.value) and not left.closed
        right.close()
        volume.delete_head("right")
        with pytest.raises(FileNotFoundError):
            volume.head("right")
        for snapshot, name, error in (("no", "new", FileNotFoundError), ("one", "left", FileExistsError)):
            with pytest.raises(error):
                volume.clone_snapshot(snapshot, name)
    assert left.closed
    with syncline.Volume(image, head="left") as left:
        assert (left / "f").read_text() == "L"
    with pytest.raises(OSError) as caught:
        syncline.Volume(image, head="right")
    assert refused_with(errno.ENOENT, caught)


# Shows: C12.
def test_a_rollback_closes_the_volume_and_keeps_what_it_is_told_to(image: Path) -> None:
    volume = syncline.Volume.create(image, 64 * MIB)
    (volume / "f").write_text("first")
    volume.snapshot("one")
    with volume.at("one"):
        pass
    file = volume.open("f", "w")
    file.write("buffered")
    volume.rollback("one", keep="two")
    assert volume.closed and file.closed
    with syncline.Volume(image) as volume:
        assert (volume / "f").read_text() == "first"
        with volume.at("two") as then:
            assert (then / "f").read_text() == "buffered"
        (volume / "f").write_text("third")
        with pytest.raises(FileNotFoundError):
            volume.rollback("no")
        assert volume.closed
    with syncline.Volume(image) as volume:
        assert (volume / "f").read_text() == "third"
        with pytest.raises(FileExistsError):
            volume.rollback("one", keep="two")
    with syncline.Volume(image) as volume:
        volume.rollback("one")
        with pytest.raises(ValueError, match="closed"):
            volume.rollback("one")
    with syncline.Volume(image) as volume:
        assert (volume / "f").read_text() == "first"
        assert [snapshot.name for snapshot in volume.snapshots()] == ["one", "two"]


def test_names_are_taken_changed_and_refused(kept: syncline.Volume) -> None:
    kept.snapshot("one")
    kept.snapshot("two")
    with pytest.raises(FileExistsError):
        kept.snapshot("one")
    with pytest.raises(FileExistsError):
        kept.rename_snapshot("one", "two")
    kept.rename_snapshot("one", "eins")
    for act in (kept.at, kept.delete_snapshot):
        with pytest.raises(FileNotFoundError):
            act("one")
    for name, number in (("", errno.EINVAL), ("a/b", errno.EINVAL), ("n" * 256, errno.ENAMETOOLONG)):
        with pytest.raises(OSError) as caught:
            kept.snapshot(name)
        assert refused_with(number, caught)
    kept.delete_snapshot("eins")
    assert [snapshot.name for snapshot in kept.snapshots()] == ["two"]


def test_a_volume_of_version_1_has_none_and_a_version_that_is_not_there_is_refused() -> None:
    with syncline.Volume.in_memory(64 * MIB, format=1) as volume:
        assert volume.snapshots() == []
        with pytest.raises(OSError) as caught:
            volume.snapshot("one")
        assert refused_with(errno.EOPNOTSUPP, caught)
    with pytest.raises(OSError) as caught:
        syncline.Volume.in_memory(64 * MIB, format=3)
    assert refused_with(errno.EINVAL, caught)


def test_a_snapshot_is_read_only_and_outlives_its_deletion_while_it_is_open(kept: syncline.Volume) -> None:
    (kept / "a").write_bytes(bytes(8 * MIB))
    kept.snapshot("one")
    full = kept.stats().free_bytes
    then = kept.at("one")
    for act in (lambda: (then / "b").touch(), lambda: then.snapshot("two"), lambda: then.open("a", "r+")):
        with pytest.raises(OSError) as caught:
            act()
        assert refused_with(errno.EROFS, caught)
    (kept / "a").unlink()
    kept.delete_snapshot("one")
    kept.reclaim()
    assert (then / "a").stat().st_size == len((then / "a").read_bytes()) == 8 * MIB
    assert kept.stats().free_bytes < full + MIB
    then.close()
    kept.reclaim()
    assert kept.stats().free_bytes > full + 7 * MIB


# Shows: C10.
def test_what_is_committed_is_one_write_and_one_flush(kept: syncline.Volume) -> None:
    with kept.open("a", "wb", 0) as file:
        file.write(b"synced")
        file.sync()
        file.pwrite(b"dirty!", 0)
        before = kept.stats()
        kept.snapshot("one", committed=True)
        after = kept.stats()
    assert after.device_writes - before.device_writes == after.device_flushes - before.device_flushes == 1
    with kept.at("one") as then:
        assert (then / "a").read_bytes() == b"synced"
    kept.snapshot("two")
    with kept.at("two") as then:
        assert (then / "a").read_bytes() == b"dirty!"


def test_closing_the_volume_closes_its_snapshots_with_their_files(image: Path) -> None:
    volume = syncline.Volume.create(image, 64 * MIB)
    (volume / "a").write_text("text")
    volume.snapshot("one")
    then = volume.at("one")
    assert "snapshot 'one'" in repr(then) and then.read_only and then.image is None
    file = then.open("a")
    volume.close()
    assert then.closed and file.closed
    with pytest.raises(ValueError, match="closed"):
        (then / "a").read_text()
    syncline.Volume(image).close()


def test_a_snapshot_keeps_its_volume_open(image: Path) -> None:
    def opened() -> syncline.Volume:
        volume = syncline.Volume.create(image, 64 * MIB)
        (volume / "a").write_text("text")
        volume.snapshot("one")
        return volume.at("one")

    then = opened()
    gc.collect()
    assert (then / "a").read_text() == "text"
    assert then._of is not None
    then._of[0].close()
    assert then.closed


def test_snapshots_amid_the_calls_of_other_threads(image: Path) -> None:
    volume = syncline.Volume.create(image, 64 * MIB)
    failures: list[BaseException] = []

    def look(number: int) -> None:
        try:
            for round_ in range(10_000):
                name = f"{number}-{round_}"
                (volume / f"f{number}").write_text(name)
                volume.snapshot(name)
                with volume.at(name) as then:
                    assert (then / f"f{number}").read_text() == name
                volume.delete_snapshot(name)
        except ValueError as error:
            if "closed" not in str(error):
                failures.append(error)
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=look, args=(number,)) for number in range(3)]
    for thread in threads:
        thread.start()
    threading.Event().wait(0.5)
    volume.close()
    for thread in threads:
        thread.join(60)
        assert not thread.is_alive()
    assert not failures
    with syncline.Volume(image) as volume:
        assert len(volume.snapshots()) <= 3


def test_fsspec_reads_a_snapshot(kept: syncline.Volume) -> None:
    pytest.importorskip("fsspec", reason="fsspec is not installed")
    from syncline.fsspec import SynclineFileSystem

    fs = SynclineFileSystem(volume=kept)
    fs.pipe("/t/a", b"first")
    kept.snapshot("one")
    fs.pipe("/t/a", b"second")
    with kept.at("one") as view:
        then = SynclineFileSystem(volume=view)
        assert (then.cat("/t/a"), fs.cat("/t/a")) == (b"first", b"second")
        assert then.find("/") == ["/t/a"]


def test_a_database_is_read_in_a_snapshot(kept: syncline.Volume) -> None:
    import syncline.sqlite

    try:
        syncline.sqlite.driver()
    except ImportError as error:
        pytest.skip(str(error))
    now = syncline.sqlite.connect(kept, "/db")
    now.execute("CREATE TABLE t (x)")
    now.execute("INSERT INTO t VALUES (1)")
    if isinstance(now, sqlite3.Connection):
        now.commit()
    kept.snapshot("one")
    now.execute("INSERT INTO t VALUES (2)")
    if isinstance(now, sqlite3.Connection):
        now.commit()
    view = kept.at("one")
    then = syncline.sqlite.connect(view, "/db")
    assert list(then.execute("SELECT x FROM t")) == [(1,)]
    assert list(now.execute("SELECT x FROM t")) == [(1,), (2,)]
    now.close()
    with pytest.raises(OSError) as caught:
        kept.close()
    assert caught.value.errno == errno.EBUSY
    assert not kept.closed and not view.closed
    then.close()
    view.close()
