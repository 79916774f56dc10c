"""What an image is called: one name for each, however it is written."""

from __future__ import annotations

import os
from typing import Union

Image = Union[str, bytes, "os.PathLike[str]", "os.PathLike[bytes]"]
"""What names an image file or a block device of the host, or a device by its address (``nbd://``, ``rbd:``)."""

_ADDRESSES = ("nbd://", "nbd+", "nbds://", "nbds+", "rbd:")
"""What an address begins with, as `crates/source` tells it from a path."""


def known_as(image: Image) -> str:
    """The canonical path of an image, or an address as it is."""
    name = os.fsdecode(image)
    return name if name.startswith(_ADDRESSES) else os.path.realpath(name)
