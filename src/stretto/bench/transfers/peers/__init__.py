"""Who moves bytes between two processes: one file a library, found by scanning.

A file has `missing()`, why it is not there, or nothing; `PATHS`, the ways it has, and
`WHATS`, the cases it can do; `environment(path)`, what must be set before it starts;
and `open_side(role, path, nbytes)`, which returns a `Side`. Importing it imports none
of its library.
"""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Sequence
from types import ModuleType

from stretto.errors import UnknownNameError

__all__ = ["OURS", "expand", "get", "names"]

OURS = "stretto"


def names() -> tuple[str, ...]:
    """Return all libraries' names, sorted."""
    return tuple(sorted(m.name for m in pkgutil.iter_modules(__path__)))


def get(name: str) -> ModuleType:
    """Return a library's module."""
    if name not in names():
        others = [n for n in names() if n != OURS]
        raise UnknownNameError.among("peer of transfers", name, (*others, "all"))
    return importlib.import_module(f"{__name__}.{name}")


def expand(wanted: Sequence[str]) -> tuple[str, ...]:
    """Return the libraries that are meant; `all` are all but ours."""
    found: list[str] = []
    for name in wanted:
        some = [n for n in names() if n != OURS] if name == "all" else [name]
        for one in some:
            get(one)
            found.append(one)
    return tuple(dict.fromkeys(found))
