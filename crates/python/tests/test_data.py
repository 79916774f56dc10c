"""numpy, pandas and pyarrow on a volume."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import syncline
from conftest import MIB


@pytest.fixture
def url(image: Path) -> Iterator[str]:
    pytest.importorskip("fsspec", reason="fsspec is not installed")
    from syncline.fsspec import SynclineFileSystem

    syncline.Volume.create(image, 256 * MIB).close()
    yield f"syncline://{image}"
    for fs in list(SynclineFileSystem._cache.values()):
        fs.close()
    SynclineFileSystem.clear_instance_cache()


def test_numpy_arrays_are_read_and_written_in_place(volume: syncline.Volume) -> None:
    numpy = pytest.importorskip("numpy", reason="numpy is not installed")
    numbers = numpy.arange(1_000_000, dtype="float64")
    with volume.open("a.bin", "w+b", 0) as file:
        assert file.write(numbers) == 8_000_000
        again = numpy.empty_like(numbers)
        assert file.preadinto(again, 0) == 8_000_000
    assert (again == numbers).all()
    with volume.open("a.npy", "wb") as file:
        numpy.save(file, numbers.reshape(1000, 1000))
    with volume.open("a.npy", "rb") as file:
        assert (numpy.load(file) == numbers.reshape(1000, 1000)).all()


def test_pandas_reads_and_writes_urls(url: str) -> None:
    pandas = pytest.importorskip("pandas", reason="pandas is not installed")
    frame = pandas.DataFrame({"a": range(1000), "b": [str(number) for number in range(1000)]})
    frame.to_csv(f"{url}/frame.csv", index=False)
    assert len(pandas.read_csv(f"{url}/frame.csv")) == 1000
    pytest.importorskip("pyarrow", reason="pyarrow is not installed")
    frame.to_parquet(f"{url}/tables/frame.parquet")
    again = pandas.read_parquet(f"{url}/tables/frame.parquet")
    assert again.equals(frame)
    frame.assign(c=frame.a % 3).to_parquet(f"{url}/parts", partition_cols=["c"])
    assert len(pandas.read_parquet(f"{url}/parts")) == 1000


def test_pyarrow_datasets(url: str) -> None:
    pyarrow = pytest.importorskip("pyarrow", reason="pyarrow is not installed")
    dataset = pytest.importorskip("pyarrow.dataset", reason="pyarrow is not installed")
    import fsspec

    fs, root = fsspec.url_to_fs(url)
    table = pyarrow.table({"a": list(range(10000)), "part": [number % 4 for number in range(10000)]})
    dataset.write_dataset(table, f"{root}data", format="parquet", partitioning=["part"], filesystem=fs)
    data = dataset.dataset(f"{root}data", filesystem=fs, partitioning=["part"])
    assert data.count_rows() == 10000
    assert data.to_table(filter=dataset.field("part") == 2)["a"].to_pylist() == list(range(2, 10000, 4))


def test_pyarrow_filesystem(url: str) -> None:
    """What pyarrow asks of a filesystem of fsspec's: its handler's whole interface."""
    arrow: Any = pytest.importorskip("pyarrow.fs", reason="pyarrow is not installed")
    import fsspec

    inner, _ = fsspec.url_to_fs(url)
    fs = arrow.PyFileSystem(arrow.FSSpecHandler(inner))
    fs.create_dir("/d/e", recursive=True)
    with fs.open_output_stream("/d/e/f") as stream:
        stream.write(b"0123456789")
    info = fs.get_file_info("/d/e/f")
    assert info.type == arrow.FileType.File and info.size == 10 and info.base_name == "f"
    assert fs.get_file_info("/missing").type == arrow.FileType.NotFound
    assert [one.path for one in fs.get_file_info(arrow.FileSelector("/", recursive=True))] == ["/d", "/d/e", "/d/e/f"]
    with fs.open_input_file("/d/e/f") as file:
        assert file.size() == 10 and file.read_at(3, 2) == b"234"
        file.seek(8)
        assert file.read() == b"89"
    with fs.open_input_stream("/d/e/f") as stream:
        assert stream.read() == b"0123456789"
    with fs.open_append_stream("/d/e/f") as stream:
        stream.write(b"ab")
    fs.copy_file("/d/e/f", "/d/g")
    fs.move("/d/g", "/d/h")
    assert fs.get_file_info("/d/h").size == 12
    fs.delete_file("/d/h")
    fs.delete_dir_contents("/d")
    assert fs.get_file_info(arrow.FileSelector("/d")) == []
    fs.delete_dir("/d")
    with pytest.raises(FileNotFoundError):
        fs.open_input_file("/d/e/f")
