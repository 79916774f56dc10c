"""Attributes in the form of `os.stat`."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ._native import _Stat

_NS = 10**9


def stat_result(attributes: _Stat) -> os.stat_result:
    """An `os.stat_result`; the device's number is 0."""
    mode, inode, links, uid, gid, size, accessed, modified, changed, _, blocks, device = attributes
    whole = (accessed // _NS, modified // _NS, changed // _NS)
    exact = (accessed / _NS, modified / _NS, changed / _NS)
    times = (accessed, modified, changed)
    block_size, special = 4096, device
    return os.stat_result((mode, inode, 0, links, uid, gid, size, *whole, *exact, *times, block_size, blocks, special))
