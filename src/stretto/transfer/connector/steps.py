"""What a scheduler tells its workers for one step: what to load, and what to save."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

__all__ = ["Load", "Save", "Step", "done_tag"]


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


def done_tag(request: str) -> bytes:
    """Return the notification that a request's blocks were fetched, or put."""
    return b"kv " + hashlib.blake2b(request.encode(), digest_size=14).digest()


def params_of(given: Any) -> Mapping[str, Any]:
    """Return a request's `kv_transfer_params`, whatever a request is."""
    found = getattr(given, "kv_transfer_params", None)
    return found or {}
