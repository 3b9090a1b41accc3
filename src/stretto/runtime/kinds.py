"""Kinds of calls: what is alike in calls that share one plan and one launch."""

from __future__ import annotations

from typing import NamedTuple

from stretto import collectives
from stretto.collectives import Operator, storage
from stretto.epilogues import Spec
from stretto.ir import members_of
from stretto.runtime.plans import FrozenParams
from stretto.runtime.request import Request
from stretto.runtime.select import STAGED, Pin

__all__ = ["Kind", "full_size", "plans_in_place"]


class Kind(NamedTuple):
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


def plans_in_place(request: Request, memory: str) -> bool:
    """Return whether the plan must allow a call in place.

    Staged plans always do: ranks may differ in it, and their plans must not. With
    registered memory all ranks' arrays lie alike, so all know; except where the root
    alone has both arrays.
    """
    if memory == STAGED:
        return True
    return request.in_place or collectives.get(request.collective).rooted


def full_size(kind: Kind, num_ranks: int) -> int:
    """Return S of a call: the bytes of the longest vector that a rank holds."""
    item = storage(kind.dtype).itemsize
    counts = kind.counts
    n = len(members_of(num_ranks, dict(kind.params)))
    if len(counts) == n**2 and n > 1:
        rows = [sum(counts[r * n :][:n]) for r in range(n)]
        return max(rows) * item
    if kind.collective == "permute":
        return max(counts, default=0) * item
    return sum(counts) * item
