"""Volumes: making, opening, closing, figures and errors."""

from __future__ import annotations

import copy
import errno
import gc
import os
import pickle
import subprocess
import sys
import threading
import time
import warnings
from collections.abc import Callable
from pathlib import Path

import pytest
import syncline
from conftest import MIB
from syncline._image import known_as


def test_what_was_closed_is_there_when_it_is_opened_again(image: Path) -> None:
    with syncline.Volume.create(image, 64 * MIB, label="notes", journal_size=16 * MIB) as volume:
        (volume / "a").write_bytes(b"one")
        assert volume.image == str(image)
    assert volume.closed
    volume.close()
    with syncline.Volume(image) as volume:
        assert (volume / "a").read_bytes() == b"one"


def test_addresses_are_no_paths(image: Path) -> None:
    for address in "nbd://host/export", "nbd+unix:///?socket=/s", "rbd:pool/image":
        assert known_as(address) == address
    assert known_as(image) == str(image.resolve())
    for wrong in "nbd:///export", "rbd:image":
        with pytest.raises(OSError, match="no address") as caught:
            syncline.Volume(wrong)
        assert caught.value.errno == errno.EINVAL


def test_a_read_only_volume_refuses_changes(image: Path) -> None:
    syncline.Volume.create(image, 64 * MIB).close()
    with syncline.Volume(image, read_only=True) as volume:
        with pytest.raises(OSError) as caught:
            (volume / "a").write_bytes(b"")
        assert caught.value.errno == errno.EROFS
        with pytest.raises(OSError) as caught:
            volume.transaction()
        assert caught.value.errno == errno.EROFS


def test_errors_are_those_of_the_system_with_a_sentence_and_the_name(volume: syncline.Volume, image: Path) -> None:
    with pytest.raises(FileNotFoundError) as missing:
        volume.open("/nothing")
    assert (missing.value.errno, missing.value.filename) == (errno.ENOENT, "/nothing")
    assert missing.value.strerror == "No such file or directory"
    (volume / "dir").mkdir()
    with pytest.raises(IsADirectoryError):
        volume.open("/dir")
    with pytest.raises(FileExistsError):
        (volume / "dir").mkdir()
    (volume / "dir" / "x").touch()
    with pytest.raises(OSError) as full:
        (volume / "dir").rmdir()
    assert full.value.errno == errno.ENOTEMPTY
    with pytest.raises(NotADirectoryError):
        (volume / "dir" / "x" / "y").touch()
    with pytest.raises(OSError) as long:
        (volume / ("n" * 256)).touch()
    assert long.value.errno == errno.ENAMETOOLONG
    with pytest.raises(OSError) as two:
        (volume / "missing").rename("/there")
    assert (two.value.filename, two.value.filename2) == ("/missing", "/there")
    with pytest.raises(FileExistsError, match="already holds"):
        syncline.Volume.create(image, 64 * MIB)
    with pytest.raises(ValueError, match="null byte"):
        volume.open("a\0b")


def test_a_volume_in_use_says_so_and_no_volume_too(volume: syncline.Volume, image: Path, tmp_path: Path) -> None:
    with pytest.raises(OSError, match="this process has it open already") as busy:
        syncline.Volume(image)
    assert busy.value.errno == errno.EBUSY
    look = "import sys, syncline; syncline.Volume(sys.argv[1])"
    there = subprocess.run([sys.executable, "-c", look, str(image)], capture_output=True, text=True)
    assert there.returncode == 1 and "in use by another process" in there.stderr
    other = tmp_path / "other"
    other.write_bytes(bytes(MIB))
    with pytest.raises(OSError) as caught:
        syncline.Volume(other)
    assert caught.value.errno == errno.EIO and caught.value.strerror
    with pytest.raises(FileNotFoundError) as missing:
        syncline.Volume(tmp_path / "nothing")
    assert str(missing.value) == f"[Errno 2] No such file or directory: {str(tmp_path / 'nothing')!r}"


def test_making_a_volume_overwrites_no_data_and_leaves_nothing_where_it_fails(tmp_path: Path) -> None:
    letter, image = tmp_path / "letter.txt", tmp_path / "data.img"
    letter.write_text("dear reader\n" * 1000)
    for size in (64 * MIB, None):
        with pytest.raises(FileExistsError, match="already holds data of an unknown kind"):
            syncline.Volume.create(letter, size)
    assert letter.read_text() == "dear reader\n" * 1000
    makes: list[Callable[[], object]] = [
        lambda: syncline.Volume.create(image, 64 * MIB, label="x" * 65),
        lambda: syncline.Volume.create(image, 64 * MIB, format=3),
        lambda: syncline.Volume.create(image, 1 << 62),
        lambda: syncline.Volume.create(image, 1),
    ]
    for make in makes:
        with pytest.raises(OSError):
            make()
        assert not image.exists()
    # More than the host allows a file to have.
    limited = """
import errno, resource, sys, syncline
resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, 1 << 20))
try:
    syncline.Volume.create(sys.argv[1], 64 << 20)
except OSError as error:
    sys.exit(0 if error.errno == errno.EFBIG else str(error))
"""
    assert subprocess.run([sys.executable, "-c", limited, str(image)]).returncode == 0
    assert not image.exists()
    image.write_bytes(bytes(64 * MIB))
    syncline.Volume.create(image).close()


def test_names_of_images_are_those_of_the_hosts_files(tmp_path: Path) -> None:
    name = os.fsencode(tmp_path) + b"/\xff.img"
    with syncline.Volume.create(name, 64 * MIB) as volume:
        (volume / "a").write_bytes(b"one")
    assert os.listdir(os.fsencode(tmp_path)) == [b"\xff.img"]
    with syncline.Volume(name, read_only=True) as volume:
        assert (volume / "a").read_bytes() == b"one"
    for wrong in ("a\0b", b"a\0b"):
        with pytest.raises(ValueError, match="null byte"):
            syncline.Volume(wrong)
    for what in (None, 3, 1.5):
        with pytest.raises(TypeError):
            syncline.Volume(what)  # type: ignore[arg-type]


def test_wrong_numbers_and_types_are_refused(volume: syncline.Volume, tmp_path: Path) -> None:
    image = tmp_path / "other.img"
    with pytest.raises(ValueError, match="negative"):
        syncline.Volume.create(image, -1)
    with pytest.raises(ValueError, match="negative"):
        syncline.Volume.in_memory(-1)
    makes: list[Callable[[], object]] = [
        lambda: syncline.Volume.create(image, 64e6),  # type: ignore[arg-type]
        lambda: syncline.Volume.create(image, 64 * MIB, format="2"),  # type: ignore[arg-type]
        lambda: volume.sync_files([1]),  # type: ignore[list-item]
        lambda: copy.copy(volume),
        lambda: pickle.dumps(volume),
        lambda: pickle.dumps(volume / "a"),
    ]
    for make in makes:
        with pytest.raises(TypeError):
            make()
    assert not image.exists()


def test_a_full_volume_says_so_and_goes_on() -> None:
    with syncline.Volume.in_memory(8 * MIB) as volume:
        with pytest.raises(OSError) as caught:
            (volume / "large").write_bytes(bytes(16 * MIB))
        assert caught.value.errno == errno.ENOSPC
        (volume / "large").unlink()
        (volume / "small").write_bytes(b"fits")


def test_options_are_checked(image: Path) -> None:
    syncline.Volume.create(image, 64 * MIB).close()
    with pytest.raises(ValueError, match="no length of time"):
        syncline.Volume(image, commit_interval=-1)
    with pytest.raises(ValueError, match="access_times"):
        syncline.Volume(image, access_times="sometimes")  # type: ignore[arg-type]
    with syncline.Volume(image, commit_interval=5, memory_bytes_max=32 * MIB, access_times="never") as volume:
        assert volume.stats().memory_bytes_max == 32 * MIB


def test_a_sync_is_one_write_and_one_flush(volume: syncline.Volume) -> None:
    with volume.open("a", "wb", 0) as file:
        file.write(bytes(4096))
        file.sync()
        before = volume.stats()
        file.pwrite(bytes(4096), 4096)
        file.sync()
        after = volume.stats()
    assert after.device_writes - before.device_writes == 1
    assert after.device_flushes - before.device_flushes == 1
    assert after.sync.count - before.sync.count == 1
    assert after.sync.p99_us >= after.sync.p50_us > 0


def test_closing_a_volume_closes_its_files_with_what_they_buffer(image: Path) -> None:
    volume = syncline.Volume.create(image, 64 * MIB)
    file = volume.open("a", "w")
    file.write("buffered")
    volume.close()
    assert file.closed
    with syncline.Volume(image) as volume:
        assert (volume / "a").read_text() == "buffered"


def test_a_closed_volume_is_refused() -> None:
    volume = syncline.Volume.in_memory(64 * MIB)
    path = volume / "a"
    volume.close()
    for act in (volume.sync, volume.stats, volume.transaction, path.touch, path.stat, volume.checkpoint):
        with pytest.raises(ValueError, match="closed"):
            act()
    with pytest.raises(ValueError, match="closed"), volume:
        pass


def test_a_volume_that_is_dropped_says_so_and_is_closed_with_its_last_file(image: Path) -> None:
    volume = syncline.Volume.create(image, 64 * MIB)
    file = volume.open("a", "wb", 0)
    with pytest.warns(ResourceWarning, match="unclosed"):
        del volume
        gc.collect()
    # The file keeps the volume open, and other processes out.
    file.write(b"later")
    with pytest.raises(OSError, match="in use"):
        syncline.Volume(image)
    file.close()
    with syncline.Volume(image) as again:
        assert (again / "a").read_bytes() == b"later"


def test_garbage_in_a_cycle_loses_nothing(image: Path) -> None:
    volume = syncline.Volume.create(image, 64 * MIB)
    cycle: list[object] = [volume, volume.open("a", "wb", 0), volume.transaction()]
    cycle[1].write(b"in a cycle")  # type: ignore[attr-defined]
    cycle.append(cycle)
    del volume, cycle
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)
        gc.collect()
    with syncline.Volume(image) as again:
        assert (again / "a").read_bytes() == b"in a cycle"


def test_what_is_open_at_the_end_of_the_program_is_closed(image: Path) -> None:
    program = f"""
import syncline
volume = syncline.Volume.create({str(image)!r}, 64 << 20)
file = volume.open("/a", "w")
file.write("to the end")
"""
    subprocess.run([sys.executable, "-c", program], check=True, timeout=60)
    with syncline.Volume(image) as volume:
        assert (volume / "a").read_text() == "to the end"


def test_trim_checkpoint_and_sync_of_several_files(volume: syncline.Volume) -> None:
    files = [volume.open(f"f{number}", "w") for number in range(3)]
    for file in files:
        file.write("x" * 5000)
    before = volume.stats().device_flushes
    volume.sync_files(files)
    assert volume.stats().device_flushes - before <= 2
    assert (volume / "f0").stat().st_size == 5000
    (volume / "large").write_bytes(bytes(b"1") * 4 * MIB)
    volume.sync()
    (volume / "large").unlink()
    volume.checkpoint()
    assert volume.trim() >= 4 * MIB


def test_representations_tell_what_it_is(volume: syncline.Volume, image: Path) -> None:
    assert str(image) in repr(volume)
    with volume.open("a", "wb", 0) as file:
        assert repr(file) == "<syncline.File name='a' mode='wb'>"
    assert "closed" in repr(file)
    assert repr(volume / "a") == "VolumePath('/a')"


def test_closing_while_other_threads_open_files(image: Path) -> None:
    """None is left over that would keep the volume open, and none is lost that was closed before."""
    for _ in range(20):
        volume = syncline.Volume.create(image, 64 * MIB)
        failures: list[BaseException] = []
        kept = []

        def work(letter: str) -> None:
            try:
                for number in range(10000):
                    kept.append(volume.open(f"{letter}{number}", "w"))
                    kept[-1].write("x")
            except ValueError as error:
                if "closed" not in str(error):
                    failures.append(error)
            except BaseException as error:
                failures.append(error)

        threads = [threading.Thread(target=work, args=(letter,)) for letter in "abc"]
        for thread in threads:
            thread.start()
        time.sleep(0.01)
        volume.close()
        for thread in threads:
            thread.join(60)
            assert not thread.is_alive()
        assert not failures and all(file.closed for file in kept)
        syncline.Volume(image).close()
        image.unlink()


def test_a_file_whose_last_bytes_do_not_fit_does_not_keep_the_volume_open(image: Path) -> None:
    volume = syncline.Volume.create(image, 8 * MIB)
    (volume / "kept").write_text("kept")
    with pytest.raises(OSError):
        (volume / "large").write_bytes(bytes(16 * MIB))
    file = volume.open("last", "wb")
    file.write(bytes(60000))
    with pytest.raises(OSError) as caught:
        volume.close()
    assert caught.value.errno == errno.ENOSPC
    assert volume.closed and file.closed
    with syncline.Volume(image) as volume:
        assert (volume / "kept").read_text() == "kept"
