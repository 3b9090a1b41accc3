"""Congestion controls, one file each, found by scanning; each offers one as `OFFER`."""

from __future__ import annotations

from dataclasses import replace

from stretto.errors import CallError
from stretto.registry import Registry
from stretto.topology.traffic import Congestion

__all__ = ["find", "names"]

_found: Registry[object] = Registry(
    "congestion control", __name__, group="stretto.congestion"
)
_AROUND = "mltcp"


def names() -> tuple[str, ...]:
    """Return all names, sorted; `mltcp+NAME` is another's with MLTCP around it."""
    return _found.names()


def find(name: str) -> Congestion:
    """Return the congestion control of that name, such as `dcqcn` or `mltcp+dctcp`."""
    around, plus, inner = name.partition("+")
    if plus:
        if around != _AROUND or inner == _AROUND:
            raise CallError(
                f"congestion control {name[:60]!r}: want NAME or {_AROUND}+NAME"
            )
        outer, made = find(_AROUND), find(inner)
        if not made.acks:
            made = replace(made, acks=True)
        return replace(
            made,
            name=name,
            about=f"{made.about}; {outer.about}",
            slope=outer.slope,
            offset=outer.offset,
        )
    return _found.offer(name, Congestion)
