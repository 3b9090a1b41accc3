"""The catalogue: shipped algorithms, one file each, found by scanning the folder."""

from __future__ import annotations

import functools
import importlib
import pkgutil
from importlib.metadata import entry_points

from stretto.errors import UnknownNameError
from stretto.lang import Algorithm

__all__ = ["get", "names", "of"]


@functools.cache
def _found() -> dict[str, Algorithm]:
    found: dict[str, Algorithm] = {}
    for module in pkgutil.iter_modules(__path__):
        loaded = importlib.import_module(f"{__name__}.{module.name}")
        here = [x for x in vars(loaded).values() if isinstance(x, Algorithm)]
        assert here, f"{loaded.__name__} registers no algorithm"
        for one in here:
            assert one.name not in found, f"{loaded.__name__}: {one.name} is taken"
            found[one.name] = one
    for entry in entry_points(group="stretto.algorithms"):
        one = entry.load()
        found.setdefault(one.name, one)
    return found


def names() -> tuple[str, ...]:
    """Return the names of all algorithms, sorted."""
    return tuple(sorted(_found()))


def get(name: str) -> Algorithm:
    """Return the algorithm of that name."""
    if name not in _found():
        raise UnknownNameError.among("algorithm", name, _found())
    return _found()[name]


def of(collective: str, num_ranks: int) -> tuple[Algorithm, ...]:
    """Return the algorithms of a collective that serve so many ranks."""
    return tuple(
        one
        for name, one in sorted(_found().items())
        if one.collective == collective and one.refuses(num_ranks) is None
    )
