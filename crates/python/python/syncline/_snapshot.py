"""Snapshots and heads: what they are, and what differs between them."""

from __future__ import annotations

import datetime
from dataclasses import dataclass
from uuid import UUID


@dataclass(frozen=True)
class Snapshot:
    """A snapshot of a volume: what it is, not what is in it (`Volume.at`).

    A snapshot that was made later has a greater number.
    """

    name: str
    uuid: UUID
    made: datetime.datetime
    number: int
    held: bool
    """It is not deleted before it is released."""

    scheduled: bool
    """The schedule has made it, and deletes it (`Volume.set_schedule`)."""


@dataclass(frozen=True)
class Head:
    """A head of a volume, a writable branch: what it is, not what is in it (`Volume.head`)."""

    name: str
    uuid: UUID
    made: datetime.datetime
    number: int
    is_default: bool
    """It is what the volume shows when nobody names a head."""

    parent: str | None
    """Its newest snapshot, or the one that it was made of, if that has a name."""


@dataclass(frozen=True)
class Change:
    """A path that differs between two snapshots (`Volume.diff`)."""

    kind: str
    """``added``, ``removed``, ``renamed`` or ``modified``."""

    path: str
    """From the root, without a leading slash; empty for the root itself."""

    old_path: str | None = None
    """Of what was renamed: the path that it had."""

    content: bool = False
    """Of what was modified: the content differs."""

    attributes: bool = False
    """Of what was modified: owner, mode, flags or extended attributes differ, or, with the same content, its time."""


def told(native: tuple[str, bytes, int, int, bool, bool]) -> Snapshot:
    name, uuid, made, number, held, scheduled = native
    return Snapshot(name, UUID(bytes=uuid), _moment(made), number, held, scheduled)


def told_head(native: tuple[str, bytes, int, int, bool, str | None]) -> Head:
    name, uuid, made, number, is_default, parent = native
    return Head(name, UUID(bytes=uuid), _moment(made), number, is_default, parent)


def _moment(nanoseconds: int) -> datetime.datetime:
    since = datetime.timedelta(microseconds=nanoseconds // 1000)
    return datetime.datetime.fromtimestamp(0, datetime.timezone.utc) + since
