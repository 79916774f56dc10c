"""pyarrow's own tests of filesystems, on a volume by way of fsspec."""

from __future__ import annotations

import inspect
import pickle
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import syncline
from conftest import MIB

pytest.importorskip("fsspec", reason="fsspec is not installed")
arrow: Any = pytest.importorskip("pyarrow.fs", reason="pyarrow is not installed")
theirs: Any = pytest.importorskip("pyarrow.tests.test_fs", reason="this pyarrow comes without its tests")

# Those that are about any filesystem have it as an argument.
for _name, _test in vars(theirs).items():
    if _name.startswith("test_") and "fs" in inspect.signature(_test).parameters:
        globals()[_name] = _test


@pytest.fixture
def filesystem_config(image: Path) -> Iterator[dict[str, Any]]:
    from syncline.fsspec import SynclineFileSystem

    syncline.Volume.create(image, 256 * MIB).close()
    fs = SynclineFileSystem(image=image)
    yield {
        "fs": arrow.PyFileSystem(arrow.FSSpecHandler(fs)),
        "pathfn": lambda path: path,
        "allow_move_dir": True,
        "allow_append_to_file": True,
    }
    for one in list(SynclineFileSystem._cache.values()):
        one.close()
    SynclineFileSystem.clear_instance_cache()


@pytest.fixture
def fs(filesystem_config: dict[str, Any]) -> Any:
    return filesystem_config["fs"]


@pytest.fixture
def pathfn(filesystem_config: dict[str, Any]) -> Callable[[str], str]:
    told: Callable[[str], str] = filesystem_config["pathfn"]
    return told


@pytest.fixture
def allow_move_dir() -> bool:
    return True


@pytest.fixture
def allow_append_to_file() -> bool:
    return True


@pytest.fixture
def pickle_module() -> Any:
    return pickle


@pytest.fixture(params=[True, False])
def pickle_with_and_without_subtree_filesystem(request: pytest.FixtureRequest) -> Any:
    return theirs._PickleModuleSubTreeFileSystemWrapper(pickle) if request.param else pickle


def test_their_tests_are_found() -> None:
    assert len([name for name in globals() if name.startswith("test_")]) > 20
