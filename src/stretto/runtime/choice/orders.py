"""Which rank had better stand where, for a program on a machine: an order of ranks.

A program says how much goes from rank to rank; a machine says over which links. To
change places is to change which links are busy, and how far data go. Wanted is little
on the busiest link, then little in all: an assignment problem, and no time to solve it
well. So two orders are improved for as long as to swap two ranks, or to turn a stretch
round, helps: the ranks as they are, and a walk to the nearest that is left. Nothing is
decided here: the simulator compares what comes of it. All numbers are whole, so that
every rank finds the same order.
"""

from __future__ import annotations

import functools
import itertools
from collections import Counter
from collections.abc import Callable, Iterator
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from stretto.program.ir import Program
from stretto.topology import Machine

_Order: TypeAlias = list[int]
_Cost: TypeAlias = tuple[int, int]
_UNIT = 1 << 20
"""What a chunk takes at a gigabyte a second; whole numbers are of it."""


def better_order(
    program: Program, machine: Machine, places: tuple[int, ...]
) -> tuple[int, ...]:
    """Return an order in which a program's links are less busy; as they are, if none.

    A root keeps its place: which rank it is, the caller says.
    """
    n, root = program.num_ranks, program.params.get("root")
    first = root if isinstance(root, int) else 0
    line = [(first + i) % n for i in range(n)]
    as_they_are, walk = list(range(n)), [0] * n
    for position, rank in zip(line, _walk(first, machine, places), strict=True):
        walk[position] = rank
    free = line if root is None else line[1:]
    cost = _cost_of(program, _busy(machine, places))
    best = min((_improved(one, free, cost) for one in (as_they_are, walk)), key=cost)
    return tuple(best if cost(best) < cost(as_they_are) else as_they_are)


def alike(machine: Machine, places: tuple[int, ...]) -> bool:
    """Return whether it is the same who stands where: all ways are as long."""
    times = _busy(machine, places).sum(axis=2)
    return len(set(times[~np.eye(len(places), dtype=bool)].tolist())) <= 1


@functools.lru_cache(maxsize=16)
def _busy(machine: Machine, places: tuple[int, ...]) -> NDArray[np.int64]:
    """Return how long a chunk from rank to rank is on each link of the machine."""
    n = len(places)
    found = np.zeros((n, n, len(machine.links)), np.int64)
    for a, b in itertools.permutations(range(n), 2):
        for link in machine.route(places[a], places[b]).links:
            found[a, b, link] = _UNIT / machine.links[link].bandwidth_gbytes_per_s
    return found


def _cost_of(program: Program, busy: NDArray[np.int64]) -> Callable[[_Order], _Cost]:
    """Return what says of an order how busy the busiest link is, and how busy all."""
    chunks: Counter[tuple[int, int]] = Counter()
    for op in program.ops:
        for src in op.srcs:
            if src.rank != op.dst.rank:
                chunks[src.rank, op.dst.rank] += src.stop - src.start
    pairs = np.array([*chunks], np.int64).reshape(-1, 2)
    weights = np.array([*chunks.values()], np.int64)

    def cost(order: _Order) -> _Cost:
        at = np.array(order)[pairs]
        links = weights @ busy[at[:, 0], at[:, 1]]
        return int(links.max(initial=0)), int(links.sum())

    return cost


def _walk(first: int, machine: Machine, places: tuple[int, ...]) -> Iterator[int]:
    """Yield all ranks, after each the nearest that is left."""
    far = _busy(machine, places).sum(axis=2)
    left, rank = set(range(len(places))), first
    while left:
        left.discard(rank)
        yield rank
        rank = min(left, key=lambda r: (far[rank, r], r), default=first)


def _improved(
    order: _Order, free: list[int], cost: Callable[[_Order], _Cost]
) -> _Order:
    """Return an order that no swap and no turn of the free positions makes better."""
    best, found = cost(order), True
    while found:
        found = False
        for i, j in itertools.combinations(range(len(free)), 2):
            for at, taken in _changes(free[i : j + 1]):
                other = list(order)
                for to, position in zip(at, taken, strict=True):
                    other[to] = order[position]
                if (now := cost(other)) < best:
                    order, best, found = other, now, True
    return order


def _changes(stretch: list[int]) -> Iterator[tuple[list[int], list[int]]]:
    """Yield where something else comes to stand, and from where: of a stretch."""
    ends = [stretch[0], stretch[-1]]
    yield stretch, stretch[::-1]
    yield ends, ends[::-1]
    yield stretch, [*stretch[1:], stretch[0]]
    yield stretch, [stretch[-1], *stretch[:-1]]
