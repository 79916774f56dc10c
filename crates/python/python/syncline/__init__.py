"""Syncline: a copy-on-write, checksummed filesystem whose fsync is one write and one flush, inside of this process.

>>> import syncline
>>> volume = syncline.Volume.in_memory(64 << 20)
>>> with volume.open("/ledger", "w") as file:
...     _ = file.write("42 coins")
...     file.sync()
>>> (volume / "ledger").read_text()
'42 coins'
>>> volume.close()

`Volume` opens or makes a volume in an image file, on a block device or in memory. `Volume.open` opens its files like
the builtin `open`. `volume / "directory" / "name"` are paths in the manner of `pathlib`. `Volume.transaction` changes
many files at one durable point. `syncline.sqlite` opens SQLite's databases in a volume, and fsspec knows the protocol
``syncline://image.img/path`` once this package is installed.

Every failure is an `OSError` of the subclass that the system's files would raise (`FileNotFoundError` ...), with
``errno`` and a sentence.
"""

from ._file import BufferedRandom, BufferedReader, BufferedWriter, File, TextFile
from ._native import ConflictError, __version__
from ._path import VolumePath
from ._snapshot import Change, Head, Snapshot
from ._ticket import SyncTicket
from ._transaction import Transaction, TransactionFile
from ._volume import Latency, Volume, VolumeStats

__all__ = [
    "BufferedRandom",
    "BufferedReader",
    "BufferedWriter",
    "Change",
    "ConflictError",
    "File",
    "Head",
    "Latency",
    "Snapshot",
    "SyncTicket",
    "TextFile",
    "Transaction",
    "TransactionFile",
    "Volume",
    "VolumePath",
    "VolumeStats",
    "__version__",
]
