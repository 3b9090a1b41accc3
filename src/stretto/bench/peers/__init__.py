"""What stretto is measured against: one file a peer, found by scanning.

A peer's file has `open_peer(setup)`, which returns a contender, and raises
`MissingExtraError` or `CallError` where it cannot serve; `DEVICES`, where it runs; and
may have `environment()`, what must be set before anybody starts, and `ALONE`, when that
would disturb the others: it then has a run of its own.
"""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from typing import Any, Protocol

from stretto.bench.workload.contender import Contender, Setup
from stretto.registry import Registry

__all__ = ["Peer", "device_arrays", "expand", "get", "names"]


class Peer(Protocol):
    """What a peer's file has; `environment` and `ALONE` need not be there."""

    DEVICES: tuple[str, ...]

    def open_peer(self, setup: Setup) -> Contender:
        """Return a contender."""


_peers: Registry[Peer] = Registry(
    "peer", __name__, listed=lambda names: (*names, "all")
)


def names() -> tuple[str, ...]:
    """Return the names of all peers, sorted, as the command line spells them."""
    return _peers.names()


def get(name: str) -> Peer:
    """Return one peer."""
    return _peers.get(name)


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
