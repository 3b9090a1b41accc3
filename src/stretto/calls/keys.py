"""What identifies a kind of call: those with one key share one plan and one launch."""

from __future__ import annotations

from typing import NamedTuple

from stretto.choice.plans import FrozenParams
from stretto.choice.select import Pin
from stretto.collectives import Operator
from stretto.epilogues import Spec

__all__ = ["LaunchKey"]


class LaunchKey(NamedTuple):
    """What identifies a kind of call: those alike share one launch."""

    device: str
    collective: str
    dtype: str
    op: Operator
    counts: tuple[int, ...]
    params: FrozenParams
    memory: str
    in_place: bool
    pin: Pin
    epilogue: Spec | None = None
    rows: tuple[int, int] = (0, 0)
    """Of an all_to_all with a permutation: see `Call.rows`."""
    aside: bool = False
    """Whether this rank works on a copy of its input: see `Call.aside`."""
