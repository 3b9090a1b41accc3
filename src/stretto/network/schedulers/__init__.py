"""Who gets which ranks: policies, one file each, alone or with CASSINI."""

from __future__ import annotations

from stretto.errors import CallError
from stretto.network.schedulers.deciding import CASSINI, Cassini, Placed
from stretto.network.schedulers.scheduler import (
    AllocationPolicy,
    ClusterScheduler,
    ClusterView,
    JobPlaces,
    JobState,
)
from stretto.registry import Registry

__all__ = [
    "CASSINI",
    "AllocationPolicy",
    "Cassini",
    "ClusterScheduler",
    "ClusterView",
    "JobPlaces",
    "JobState",
    "Placed",
    "about",
    "cassini",
    "find",
    "names",
]

_found: Registry[object] = Registry(
    "scheduler", "stretto.network.schedulers.policies", group="stretto.schedulers"
)


def cassini(host: ClusterScheduler) -> ClusterScheduler:
    """Return a scheduler with CASSINI behind it."""
    if not isinstance(host, Placed):
        raise CallError(f"scheduler {host.name!r}: want one without CASSINI")
    return Cassini(host)


def names() -> tuple[str, ...]:
    """Return all names, sorted; `NAME+cassini` is one with CASSINI behind it."""
    return _found.names()


def about(name: str) -> str:
    """Return in one line what a scheduler does."""
    offer = _found.get(name)
    return str(offer.__doc__ or "").split("\n", 1)[0]


def find(name: str) -> ClusterScheduler:
    """Return the scheduler of that name, such as `themis` or `themis+cassini`."""
    host, plus, more = name.partition("+")
    if plus and more != CASSINI:
        raise CallError(f"scheduler {name[:60]!r}: want NAME or NAME+{CASSINI}")
    made = Placed(_found.offer(host, AllocationPolicy))
    return cassini(made) if plus else made
