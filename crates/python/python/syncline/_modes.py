"""What the letters of `open`'s modes mean, and which layers of `io` go over a raw file."""

from __future__ import annotations

import io
from dataclasses import dataclass
from typing import Any, Callable

DEFAULT_BUFFER_SIZE = 64 << 10
"""Bytes of a buffered file's buffer: a call of the library costs more than the copy of so few bytes."""


@dataclass(frozen=True)
class Mode:
    """A mode, taken apart."""

    letter: str
    updating: bool
    text: bool

    @property
    def readable(self) -> bool:
        return self.letter == "r" or self.updating

    @property
    def writable(self) -> bool:
        return self.letter != "r" or self.updating

    @property
    def name(self) -> str:
        """As a raw file tells it."""
        return self.letter + "b" + "+" * self.updating


def parse(mode: str) -> Mode:
    """Takes a mode apart. Raises `ValueError` as the builtin `open` does."""
    if not isinstance(mode, str):
        raise TypeError(f"open() argument 'mode' must be str, not {type(mode).__name__}")
    letters = set(mode)
    if letters - set("rwaxbt+") or len(mode) > len(letters):
        raise ValueError(f"invalid mode: {mode!r}")
    if {"b", "t"} <= letters:
        raise ValueError("can't have text and binary mode at once")
    how = letters & set("rwax")
    if len(how) != 1:
        raise ValueError("must have exactly one of create/read/write/append mode")
    return Mode(how.pop(), "+" in letters, "b" not in letters)


def check(mode: Mode, buffering: int, encoding: str | None, errors: str | None, newline: str | None) -> None:
    """Raises `ValueError` for arguments that contradict the mode, before anything is opened."""
    if mode.text:
        if buffering == 0:
            raise ValueError("can't have unbuffered text I/O")
        return
    for name, value in (("encoding", encoding), ("errors", errors), ("newline", newline)):
        if value is not None:
            raise ValueError(f"binary mode doesn't take an {name} argument")


@dataclass(frozen=True)
class Layers:
    """The classes of the layers over a raw file."""

    reader: Callable[[Any, int], io.BufferedReader]
    writer: Callable[[Any, int], io.BufferedWriter]
    random: Callable[[Any, int], io.BufferedRandom]
    text: Callable[..., io.TextIOWrapper]


def layered(
    raw: io.RawIOBase,
    mode: Mode,
    buffering: int,
    encoding: str | None,
    errors: str | None,
    newline: str | None,
    layers: Layers,
) -> Any:
    """Puts the layers over a raw file that `open` would. The file is closed if that fails."""
    try:
        if buffering == 0:
            return raw
        by_line = buffering == 1 and mode.text
        size = buffering if buffering > 1 else DEFAULT_BUFFER_SIZE
        buffered: Any
        if mode.updating:
            buffered = layers.random(raw, size)
        elif mode.writable:
            buffered = layers.writer(raw, size)
        else:
            buffered = layers.reader(raw, size)
        if not mode.text:
            return buffered
        return layers.text(buffered, encoding, errors, newline, by_line)
    except BaseException:
        raw.close()
        raise
