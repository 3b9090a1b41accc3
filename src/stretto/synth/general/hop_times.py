"""When hops of trees can be: what comes before a hop, and what is left behind it.

A hop with two latencies in front of it cannot start at once, and one with a hop behind
it must end early. So what trees put on a link has to fit into the time in which it can
be there: of all hops over a link, those with at least so much before them and so much
behind them have the whole time less both. That says how much may go down deep trees,
early, and how much down flat ones, late, which a sum of all that a link carries cannot.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np

__all__ = ["Times", "Top", "Tree", "Way", "hop_times", "hops_at_once", "levels"]

Way: TypeAlias = tuple[int, ...]
Top: TypeAlias = tuple[int, ...]
"""A root, and whom it meets."""
Times: TypeAlias = tuple[float, float]
"""Latency in us, and what a unit of data takes, hop by hop."""
_NOTHING: Times = 0.0, 0.0
_MOST_LEVELS = 5


@dataclass(frozen=True, slots=True)
class Tree:
    """Ways from rank to rank: from a root, or turned round, to it."""

    ways: tuple[tuple[int, int, Way], ...]
    """(from, to, links); those near the root first. Whoever meets tells all others."""
    sums: bool
    """Whether the ways lead to the root: sums flow, data do not spread."""
    top: Top
    """The root, and whom it meets: ranks next to it in the tree."""


def hop_times(
    tree: Tree, cost: Callable[[list[int]], Times]
) -> tuple[list[tuple[Times, Times]], Times]:
    """Return what is before and behind every way of a tree, and the tree's depth.

    Ranks that meet begin and end together: their step is half of it in either tree.
    """
    hops, below = [], dict[int, Times]()
    for u, v, way in tree.ways:
        near, new = (v, u) if tree.sums else (u, v)
        hops.append((near, new, cost(list(way))))
    steps = [takes for u, v, takes in hops if {u, v} <= {*tree.top}]
    late, slow = max(steps, default=_NOTHING)
    far = dict.fromkeys(tree.top, (late / 2, slow / 2))
    for near, new, takes in hops:
        far.setdefault(new, _both(far[near], takes))
    for near, new, takes in reversed(hops):
        behind = _both(below.get(new, _NOTHING), takes)
        below[near] = max(below.get(near, _NOTHING), behind)
    found = []
    for near, new, (late, _) in hops:
        # what a way itself takes is what its links carry
        outer, inner = below.get(new, _NOTHING), far[near]
        before, behind = (outer, inner) if tree.sums else (inner, outer)
        found.append((before, _both(behind, (late, 0.0))))
    return found, max(far.values())


def _both(a: Times, b: Times) -> Times:
    return a[0] + b[0], a[1] + b[1]


def levels(values: Any, most: int = _MOST_LEVELS) -> Any:
    """Return some of these values, from the least to the largest."""
    every = np.unique(np.round(values, 9))
    some = np.linspace(0, len(every) - 1, min(most, len(every)))
    return every[some.round().astype(int)]


def hops_at_once(at: Any, before: Any, behind: Any) -> Iterator[tuple[Any, float]]:
    """Yield which hops share a link, by number, and what it is closed to all of them.

    `at` says over which link each hop goes.
    """
    order = np.argsort(at, kind="stable")
    ends = np.flatnonzero(np.diff(at[order], append=-1)) + 1
    for here in np.split(order, ends[:-1]):
        first, last = before[here], behind[here]
        closed: dict[bytes, tuple[Any, float]] = {}
        for a in levels(first):
            for b in levels(last):
                some = (first >= a - _DUST) & (last >= b - _DUST)
                if some.any():  # of the same hops, the latest
                    closed[some.tobytes()] = here[some], float(a + b)
        yield from closed.values()


_DUST = 1e-9
