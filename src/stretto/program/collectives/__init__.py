"""Each collective's buffers, promise, sizes and NumPy oracle, one file each."""

from __future__ import annotations

import functools
import importlib

from stretto.errors import UnknownNameError
from stretto.program.collectives.base import Need, Pattern, Shape, SymbolRun, bus_factor
from stretto.program.collectives.members import Collective
from stretto.program.elements import (
    DTYPES,
    FLOAT8,
    Array,
    Format,
    Operator,
    check,
    combine,
    dtype_name,
    finish,
    narrow,
    storage,
    widen,
)
from stretto.registry import modules

__all__ = [
    "DTYPES",
    "FLOAT8",
    "Array",
    "Collective",
    "Format",
    "Need",
    "Operator",
    "Pattern",
    "Shape",
    "SymbolRun",
    "bus_factor",
    "check",
    "combine",
    "dtype_name",
    "finish",
    "get",
    "names",
    "narrow",
    "storage",
    "widen",
]


@functools.cache
def _found() -> dict[str, Collective]:
    for module in modules(__name__):
        importlib.import_module(f"{__name__}.{module}")
    found: dict[str, Collective] = {}
    for kind in Pattern.__subclasses__():
        assert kind.name not in found, f"two collectives are named {kind.name}"
        found[kind.name] = Collective(kind())
    return found


def names() -> tuple[str, ...]:
    """Return the names of all collectives, sorted."""
    return tuple(sorted(_found()))


def get(name: str) -> Collective:
    """Return the collective of that name."""
    if not isinstance(name, str) or name not in _found():
        raise UnknownNameError.among("collective", name, _found())
    return _found()[name]
