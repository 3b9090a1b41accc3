"""What stretto is measured against: one file a peer, found by scanning.

A peer's file has `open_peer(setup)`, which returns a contender, and raises
`MissingExtraError` or `CallError` where it cannot serve; `DEVICES`, where it runs; and
may have `environment()`, what must be set before anybody starts, and `ALONE`, when that
would disturb the others: it then has a run of its own.
"""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Sequence
from types import ModuleType
from typing import Any

from stretto.errors import UnknownNameError

__all__ = ["device_arrays", "expand", "get", "names"]


def names() -> tuple[str, ...]:
    """Return the names of all peers, sorted, as the command line spells them."""
    found = (m.name for m in pkgutil.iter_modules(__path__))
    return tuple(sorted(n.replace("_", "-") for n in found if n[0] != "_"))


def get(name: str) -> ModuleType:
    """Return the module of one peer."""
    if name not in names():
        raise UnknownNameError.among("peer", name, (*names(), "all"))
    return importlib.import_module(f"{__name__}.{name.replace('-', '_')}")


def expand(wanted: Sequence[str], device: str) -> tuple[str, ...]:
    """Return the peers that are meant; `all` are those that run on the device."""
    found: list[str] = []
    for name in wanted:
        if name == "all":
            found += [n for n in names() if device in get(n).DEVICES]
        else:
            get(name)
            found.append(name)
    return tuple(dict.fromkeys(found))


def device_arrays(kind: str, comm: Any, *, registered: bool) -> Any:
    """Return what makes arrays of a kind: those of GPUs, and tensors on the CPU."""
    arrays = importlib.import_module(f"{__name__}._arrays")
    return arrays.open_arrays(kind, comm, registered=registered)
