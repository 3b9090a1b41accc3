"""What a scheduler tells its workers for one step: what to load, and what to save."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from stretto.errors import LayoutError

__all__ = ["Load", "Save", "Step", "Told", "block_ids_of", "done_tag", "params_of"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """A request whose keys and values lie at other engines."""

    request: str
    engines: tuple[str, ...]
    """Those that hold them: one for each tensor-parallel rank that made them."""
    remote_blocks: tuple[int, ...]
    local_blocks: tuple[int, ...]
    tokens: int
    lease: Mapping[str, bytes] = field(default_factory=dict)
    """By engine, the lease under which it keeps them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Save:
    """A request whose keys and values go to an engine, layer by layer."""

    request: str
    engine: str
    remote_blocks: tuple[int, ...]
    local_blocks: tuple[int, ...]
    tokens: int
    lease: bytes = b""


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """One step of a serving engine: vLLM calls it the connector's metadata."""

    loads: tuple[Load, ...] = ()
    saves: tuple[Save, ...] = ()
    kept: Mapping[str, Mapping[str, bytes]] = field(default_factory=dict)
    """Requests whose blocks rest until they are fetched: by engine, under which lease.
    """
    late: tuple[str, ...] = ()
    """Requests that nobody fetched in time: their leases end."""
    preempted: tuple[str, ...] = ()
    """Requests that give their blocks away."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Told:
    """What a worker tells the scheduler: leases that it may hand out, by engine."""

    leases: Mapping[str, tuple[bytes, ...]]

    def aggregate(self, other: Told) -> Told:
        """Return what both tell."""
        every = dict(self.leases)
        for name, some in other.leases.items():
            every[name] = (*every.get(name, ()), *some)
        return Told(leases=every)


def done_tag(request: str) -> bytes:
    """Return the notification that a request's blocks were fetched, or put."""
    return b"kv " + hashlib.blake2b(request.encode(), digest_size=14).digest()


def params_of(given: Any) -> Mapping[str, Any]:
    """Return a request's `kv_transfer_params`, whatever a request is."""
    found = getattr(given, "kv_transfer_params", None)
    return found or {}


def block_ids_of(given: Any) -> tuple[int, ...]:
    """Return block numbers: of a list, or of what a block manager calls blocks.

    LayoutError: they are of several groups; a cache here has one.
    """
    ask = getattr(given, "get_block_ids", None)
    some = given if ask is None else ask()
    if some and isinstance(some[0], (list, tuple)):
        if len(some) > 1:
            raise LayoutError(f"blocks of {len(some)} groups; a cache here has one")
        some = some[0]
    return tuple(int(block) for block in some or ())
