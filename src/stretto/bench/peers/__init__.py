"""What stretto is measured against: one file a library, found by scanning.

A file's `OFFERS` are what its library can be: a `Contender` in collectives and between
pairs, a `Side` of transfers, or both. Importing it imports none of the library.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Sequence
from typing import Any, Protocol, TypeVar

from stretto.bench.contender import Library
from stretto.errors import UnknownNameError
from stretto.registry import Registry

__all__ = ["OURS", "device_arrays", "expand", "get", "names"]

OURS = "stretto"
_Kind = TypeVar("_Kind", bound=Library)


class _File(Protocol):
    OFFERS: tuple[type[Library], ...]


_files: Registry[_File] = Registry(
    "peer", __name__, listed=lambda names: (*names, "all")
)


def names(kind: type[Library] = Library) -> tuple[str, ...]:
    """Return the names of the peers of a kind, sorted, as the command line has them."""
    return tuple(name for name in _files.names() if _offered(_files.get(name), kind))


def get(name: str, kind: type[_Kind]) -> type[_Kind]:
    """Return what a library, or stretto itself, is as that kind of contender."""
    ours = f"{__name__}._ours"
    file = importlib.import_module(ours) if name == OURS else _files.get(name)
    for found in _offered(file, kind):
        return found
    raise UnknownNameError.among("peer", name, (*names(kind), "all"))


def expand(
    wanted: Sequence[str],
    kind: type[_Kind],
    able: Callable[[type[_Kind]], bool] = lambda one: True,
) -> tuple[str, ...]:
    """Return the peers that are meant; `all` are those of the kind that are able."""
    found: list[str] = []
    for name in wanted:
        if name == "all":
            found += [n for n in names(kind) if able(get(n, kind))]
        else:
            get(name, kind)
            found.append(name)
    return tuple(dict.fromkeys(found))


def device_arrays(kind: str, comm: Any, *, registered: bool) -> Any:
    """Return what makes arrays of a kind: those of GPUs, and tensors on the CPU."""
    arrays = importlib.import_module(f"{__name__}._arrays")
    return arrays.open_arrays(kind, comm, registered=registered)


def _offered(file: Any, kind: type[_Kind]) -> list[type[_Kind]]:
    return [one for one in file.OFFERS if issubclass(one, kind)]
