"""Carry bytes between hosts: one class of carriers, one folder each, found by scanning.

In: memory of this rank, and which peers are on other hosts. Out: their bytes where they
belong, and then the words that announce them. Never: anything of plans, or of who died.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from stretto.errors import CallError, UnknownNameError
from stretto.fabric.hop.base import MORE, MOST_LANES, Calls, PutCall, SignalCall, Window
from stretto.fabric.hop.carrier import Carrier
from stretto.fabric.hop.compiled import CompiledHop
from stretto.fabric.hop.connections import Hop
from stretto.fabric.variables import text_of
from stretto.registry import Registry

__all__ = [
    "CARRIER",
    "DEFAULT",
    "MORE",
    "MOST_LANES",
    "Calls",
    "Carrier",
    "CompiledHop",
    "Hop",
    "PutCall",
    "SignalCall",
    "Window",
    "chosen",
    "get",
    "names",
    "open_for",
]

CARRIER, DEFAULT = "STRETTO_CARRIER", "tcp"
_GROUP = "stretto.carriers"
_carriers: Registry[object] = Registry("carrier", __name__, group=_GROUP, folders=True)


def names() -> tuple[str, ...]:
    """Return the names of all carriers, sorted."""
    return _carriers.names()


def chosen(environment: Mapping[str, str] | None = None) -> str:
    """Return the carrier that users ask for, or the one that is always there."""
    name = text_of(CARRIER, DEFAULT, environment)
    if name not in names():
        raise UnknownNameError.among(f"carrier ({CARRIER})", name, names())
    get(name)
    return name


def get(name: str) -> Carrier:
    """Return a carrier: what a folder here offers as OFFER, or an entry point."""
    found = _carriers.offer(name, Carrier)
    if found.name != name:
        raise CallError(
            f"carrier {name!r} of {_GROUP} is named {found.name!r} by itself"
        )
    return found


def open_for(group: Any, **about: Any) -> Hop:
    """Open the hop of a group's rank, by the carrier that users ask for.

    Who it is, what all know, and who says that waiting is in vain, are the group's;
    `about` are the other words of its `Window`.
    """
    window = Window(
        rank=group.rank, num_ranks=group.num_ranks,
        secret=bytes(getattr(group, "secret", b"")),
        towards=str(getattr(group, "towards", "")), **about,
    )  # fmt: skip
    opened = get(chosen()).open_hop(window)
    opened.check = getattr(group, "check", opened.check)
    return opened
