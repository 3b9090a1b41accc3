"""Who moves bytes between two processes: one file a library, found by scanning.

A file has `missing()`, why it is not there, or nothing; `PATHS`, the ways it has, and
`WHATS`, the cases it can do; `environment(path)`, what must be set before it starts;
and `open_side(role, path, nbytes)`, which returns a `Side`. Importing it imports none
of its library.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

from stretto.bench.transfers.side import Side
from stretto.registry import Registry

__all__ = ["OURS", "Library", "expand", "get", "names"]

OURS = "stretto"


class Library(Protocol):
    """What a library's file has."""

    __name__: str
    PATHS: tuple[str, ...]
    WHATS: tuple[str, ...]

    def missing(self) -> str:
        """Return why it is not there, or nothing."""

    def environment(self, path: str) -> Mapping[str, str]:
        """Return what must be set before a side starts."""

    def open_side(self, role: str, path: str, nbytes: int) -> Side:
        """Open one of two sides."""


def _others(names: Sequence[str]) -> tuple[str, ...]:
    return (*(name for name in names if name != OURS), "all")


_libraries: Registry[Library] = Registry("peer of transfers", __name__, listed=_others)


def names() -> tuple[str, ...]:
    """Return all libraries' names, sorted."""
    return _libraries.names()


def get(name: str) -> Library:
    """Return a library."""
    return _libraries.get(name)


def expand(wanted: Sequence[str]) -> tuple[str, ...]:
    """Return the libraries that are meant; `all` are all but ours."""
    found: list[str] = []
    for name in wanted:
        some = [n for n in names() if n != OURS] if name == "all" else [name]
        for one in some:
            get(one)
            found.append(one)
    return tuple(dict.fromkeys(found))
