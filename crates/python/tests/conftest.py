"""What several tests use."""

from __future__ import annotations

import errno
from collections.abc import Iterator
from pathlib import Path

import pytest
import syncline

MIB = 1 << 20


@pytest.fixture
def image(tmp_path: Path) -> Path:
    """The path of an image that is not there yet."""
    return tmp_path / "disk.img"


@pytest.fixture
def volume(image: Path) -> Iterator[syncline.Volume]:
    """An open volume in an image file."""
    with syncline.Volume.create(image, 64 * MIB) as volume:
        yield volume


def is_forked(error: OSError) -> bool:
    """Whether a forked child was refused, with the sentence."""
    return error.errno == errno.ESTALE and "forked child" in str(error)
