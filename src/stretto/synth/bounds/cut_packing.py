"""What a cheapest tree costs at least, proved by sets that it must enter.

A tree from a root to some ranks enters every set of ranks that holds one of them and
not the root. Sets with values, of which no hop enters more than it costs, prove that no
tree is cheaper than the values' sum. Where all ranks are wanted the best of such proofs
is as dear as the cheapest tree; by way of others it may be less.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

__all__ = ["packed_cuts"]


def packed_cuts(
    cost: Any, root: int, wanted: Sequence[int]
) -> list[tuple[int, list[int]]]:
    """Return values and sets for whole costs, from and to; the smallest sets first.

    The set that grows is of all who reach a wanted rank for nothing, as long as the
    root is not among them; its value is what the cheapest hop into it still costs.
    """
    count = len(cost)
    left = cost.copy()
    np.fill_diagonal(left, np.iinfo(left.dtype).max)
    free = [_bits(left[:, v] == 0) for v in range(count)]
    reach = {v: _reached(free, v) for v in wanted if v != root}
    found = []
    while reach := {v: s for v, s in reach.items() if not s >> root & 1}:
        grown = min(reach.values(), key=int.bit_count)
        inside = np.array([bool(grown >> r & 1) for r in range(count)])
        part = left[np.ix_(~inside, inside)]
        value = int(part.min())
        left[np.ix_(~inside, inside)] = part - value
        found.append((value, np.flatnonzero(inside).tolist()))
        for v in np.flatnonzero(inside).tolist():
            free[v] = _bits(left[:, v] == 0)
        for v, s in reach.items():
            if s & grown:
                reach[v] = _reached(free, v)
    return found


def _bits(row: Any) -> int:
    return sum(1 << u for u in np.flatnonzero(row).tolist())


def _reached(free: Sequence[int], v: int) -> int:
    """Return who reaches v over hops that cost nothing."""
    seen = fresh = 1 << v
    while fresh:
        low = fresh & -fresh
        fresh ^= low
        new = free[low.bit_length() - 1] & ~seen
        seen |= new
        fresh |= new
    return seen
