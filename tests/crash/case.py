"""The table of scenarios: a decorator that names and describes them."""

import hashlib
from dataclasses import dataclass
from typing import Callable

HOUR = "commit=3600"


@dataclass
class Case:
    name: str
    about: str
    function: Callable
    options: str
    # Relies on an option of ours, or on a promise that others do not make (fsync of a clean file covers all names).
    only_syncline: bool


def table():
    """A list of cases and the decorator that fills it."""
    cases = []

    def scenario(about, options=HOUR, only_syncline=False):
        def add(function):
            cases.append(Case(function.__name__, about, function, options, only_syncline))
            return function

        return add

    return cases, scenario


def content(tag, size=5000):
    """Bytes that follow from a tag and look like no other tag's."""
    seed = hashlib.sha256(str(tag).encode()).digest()
    return (seed * (size // 32 + 1))[:size]


def is_prefix(done, there):
    """Whether of the things done in order, those that are there are the first ones."""
    there = set(there)
    count = len(there)
    return there == set(done[:count])
