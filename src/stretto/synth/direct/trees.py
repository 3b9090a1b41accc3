"""Trees that fill the bottleneck: all_gather and broadcast at their exact rate.

k spanning trees grow from every root so that no link carries more than its share. Each
edge is taken with the largest multiplicity that leaves the others able to finish (a
maximum flow says how many), so the packing never backtracks.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction
from typing import TypeAlias

from stretto.synth.bounds.cuts import broadcast_cut, gather_cut
from stretto.synth.direct.link_times import LinkQueue, ReadyTransfer
from stretto.synth.network.maxflow import FlowGraph
from stretto.synth.network.model import Network
from stretto.synth.network.symmetry import trivial
from stretto.synth.network.without_switches import (
    Units,
    feasible,
    never_stop,
    remove_switches,
)
from stretto.synth.schedules.schedule import Demand, TimedMove, TimedSchedule

__all__ = ["Forest", "book_trees", "pack_trees", "trees_at_best"]

_Path: TypeAlias = tuple[int, ...]
_ENDLESS = 1 << 60


@dataclass(frozen=True, slots=True, kw_only=True)
class Forest:
    """Trees of equal weight, k from every root."""

    network: Network
    trees: int
    """k, trees from every root."""
    units_per_rate: Fraction
    """U: a link of rate b has room for U b trees."""
    edges: tuple[tuple[int, int, tuple[_Path, ...]], ...]
    """(root, which tree, ways in growing order)."""

    def check(self) -> None:
        """Raise when a link is too full or a tree does not span."""
        load: dict[int, int] = defaultdict(int)
        for root, _, ways in self.edges:
            reached = {root}
            for path in ways:
                src = self.network.links[path[0]].src
                dst = self.network.links[path[-1]].dst
                assert src in reached  # trees grow from what they reached
                assert dst not in reached  # and reach every rank once
                reached.add(dst)
                for e in path:
                    load[e] += 1
            assert reached >= set(self.network.members)
        for e, used in load.items():
            assert used <= self.units_per_rate * self.network.links[e].rate


def pack_trees(
    network: Network,
    *,
    trees: int | None = None,
    root: int | None = None,
    check: Callable[[], None] = never_stop,
) -> Forest:
    """Return k trees from every member, or from one root; k as given, else optimal.

    `check` is called all the time and may raise, to give up.
    """
    rates = [k.rate for k in network.links]
    roots = network.members if root is None else (root,)
    if root is None:
        best = gather_cut(network).rate
    else:
        best = broadcast_cut(network, root).capacity
    if trees is None:
        shared = _shared([*rates, best])
        per_rate, k = 1 / shared, int(best / shared)
    else:
        per_rate, k = _coarsest(network, trees, best, roots), trees
    counts = dict.fromkeys(roots, k)
    units = Units(network, [math.floor(per_rate * rate) for rate in rates])
    units = remove_switches(units, counts, check)
    grown = _grow(units, counts, check)
    forest = Forest(
        network=network, trees=k, units_per_rate=per_rate, edges=_route(units, grown)
    )
    forest.check()
    return forest


def trees_at_best(network: Network, *, root: int | None = None) -> int:
    """Return how many trees from every root an optimal packing has."""
    best = (
        gather_cut(network).rate
        if root is None
        else broadcast_cut(network, root).capacity
    )
    return int(best / _shared([*(k.rate for k in network.links), best]))


def _shared(values: list[Fraction]) -> Fraction:
    """Return the largest fraction of which all values are whole multiples."""
    bottom = math.lcm(*(v.denominator for v in values))
    return Fraction(math.gcd(*(int(v * bottom) for v in values)), bottom)


def _coarsest(
    network: Network, trees: int, best: Fraction, roots: tuple[int, ...]
) -> Fraction:
    """Return the smallest U for which k trees fit into rounded-down capacities."""
    rates = {k.rate for k in network.links}
    least = trees / best
    steps = sorted(
        {
            u
            for rate in rates
            for j in range(math.floor(least * rate), math.ceil(least * rate * 2) + 3)
            if (u := j / rate) >= least
        }
        | {least}
    )
    counts = dict.fromkeys(roots, trees)
    low, high = 0, len(steps) - 1
    while low < high:
        middle = (low + high) // 2
        room = [math.floor(steps[middle] * k.rate) for k in network.links]
        if feasible(Units(network, room), counts):
            high = middle
        else:
            low = middle + 1
    return steps[low]


@dataclass(slots=True, kw_only=True)
class _Batch:
    """Several equal trees that have grown alike so far."""

    root: int
    count: int
    reached: list[int]
    edges: list[tuple[int, int]]
    node: int
    """Its node in the flow graph."""


class _Ground:
    """The flow graph that says how often an edge may be taken."""

    def __init__(self, units: Units, most_batches: int) -> None:
        network = units.network
        self._source = network.num_ranks
        self._first = network.num_ranks + 1
        self._flow = FlowGraph(self._first + most_batches)
        self._used = 0
        self._room: dict[tuple[int, int], int] = {}
        self._edge: dict[tuple[int, int], int] = {}
        for u, v, c in units.edges():
            self._room[u, v] = c
            self._edge[u, v] = self._flow.add(u, v, c)
        self._from = [self._flow.add(self._source, r, 0) for r in network.members]
        self._start: dict[int, int] = {}
        self.total = 0

    def add(self, batch: _Batch) -> None:
        """Put a batch on the ground."""
        batch.node = self._first + self._used
        self._used += 1
        self._start[batch.node] = self._flow.add(self._source, batch.node, batch.count)
        for v in batch.reached:
            self._flow.add(batch.node, v, _ENDLESS)

    def resize(self, batch: _Batch, count: int) -> None:
        """Change how many trees a batch stands for."""
        batch.count = count
        self._flow.change(self._start[batch.node], count)

    def finish(self, batch: _Batch) -> None:
        """Take a batch that spans everything off the ground."""
        self._flow.change(self._start[batch.node], 0)

    def room(self, batch: _Batch, x: int, y: int, others: int) -> int:
        """Return how many trees of the batch may take the edge from x to y."""
        most = min(batch.count, self._room.get((x, y), 0))
        if not most:
            return 0
        self._flow.change(self._from[x], _ENDLESS)
        self._flow.change(self._start[batch.node], 0)
        self._flow.reset()
        found = self._flow.solve(self._source, y, others + most) - others
        self._flow.change(self._from[x], 0)
        self._flow.change(self._start[batch.node], batch.count)
        return max(0, min(most, found))

    def take(self, batch: _Batch, x: int, y: int) -> None:
        """Let the whole batch take an edge."""
        self._room[x, y] -= batch.count
        self._flow.change(self._edge[x, y], self._room[x, y])
        self._flow.add(batch.node, y, _ENDLESS)
        batch.reached.append(y)
        batch.edges.append((x, y))


def _grow(
    units: Units, counts: dict[int, int], check: Callable[[], None]
) -> list[_Batch]:
    """Grow all batches until each spans every member."""
    network = units.network
    n = network.num_ranks
    ground = _Ground(units, most_batches=64 * n * len(counts) + 64)
    queue = [
        _Batch(root=r, count=k, reached=[r], edges=[], node=-1)
        for r, k in counts.items()
    ]
    for batch in queue:
        ground.add(batch)
    total = sum(counts.values())
    after: dict[int, list[int]] = defaultdict(list)
    for u, v, _ in sorted(units.edges(), key=lambda e: -e[2]):
        after[u].append(v)
    done = []
    while queue:
        batch = queue.pop(0)
        while len(batch.reached) < n:
            check()
            x, y, most = _next(batch, ground, after, total - batch.count)
            if most < batch.count:
                rest = _Batch(
                    root=batch.root,
                    count=batch.count - most,
                    reached=list(batch.reached),
                    edges=list(batch.edges),
                    node=-1,
                )
                ground.resize(batch, most)
                ground.add(rest)
                queue.insert(0, rest)
            ground.take(batch, x, y)
        ground.finish(batch)
        total -= batch.count
        done.append(batch)
    return done


def _next(
    batch: _Batch, ground: _Ground, after: dict[int, list[int]], others: int
) -> tuple[int, int, int]:
    """Return the first edge, nearest the root, that the batch may take."""
    inside = set(batch.reached)
    for x in batch.reached:
        for y in after[x]:
            if y not in inside and (most := ground.room(batch, x, y, others)):
                return x, y, most
    raise AssertionError("a packing always goes on: the rate was proved feasible")


def _route(
    units: Units, batches: list[_Batch]
) -> tuple[tuple[int, int, tuple[_Path, ...]], ...]:
    """Give every tree's edges the links they run over."""
    left = units.copy()
    found = []
    which: dict[int, int] = defaultdict(int)
    for batch in batches:
        for _ in range(batch.count):
            ways = tuple(left.take(x, y, 1)[0][0] for x, y in batch.edges)
            found.append((batch.root, which[batch.root], ways))
            which[batch.root] += 1
    return tuple(found)


def book_trees(
    forest: Forest,
    demand: Demand,
    *,
    pieces: int = 1,
    eager: int = 1,
    check: Callable[[], None] = never_stop,
) -> TimedSchedule:
    """Return the schedule that sends `pieces` chunks down every tree.

    The demand's split must be trees x pieces. Where a link has a choice, the branch
    with the most hops to go is first; `eager` is how many hops outweigh one piece.
    `check` is called all the time and may raise, to give up.
    """
    network = forest.network
    members = {r: i for i, r in enumerate(network.members)}
    rooted = demand.collective == "broadcast"
    nexts: dict[tuple[int, int], list[_Path]] = defaultdict(list)
    heights: dict[tuple[int, int], int] = {}
    for tree, (_, _, ways) in enumerate(forest.edges):
        height: dict[int, int] = defaultdict(int)
        for path in reversed(ways):
            src, dst = network.links[path[0]].src, network.links[path[-1]].dst
            height[src] = max(height[src], height[dst] + 1)
            nexts[tree, src].append(path)
        heights.update({(tree, v): h for v, h in height.items()})
    queue = LinkQueue(demand)

    def offer(tree: int, chunk: int, node: int, when: int, piece: int) -> None:
        for path in nexts.get((tree, node), ()):
            deep = heights.get((tree, network.links[path[-1]].dst), 0)
            queue.offer(
                when, ReadyTransfer(piece * eager - deep, piece, tree, chunk, path)
            )

    for tree, (root, which, _) in enumerate(forest.edges):
        for piece in range(pieces):
            base = 0 if rooted else members[root] * demand.split
            offer(tree, base + which * pieces + piece, root, 0, piece)
    moves = []
    for start, job in queue.run():
        check()
        path = job.path
        src, dst = network.links[path[0]].src, network.links[path[-1]].dst
        moves.append(TimedMove(queue.us(start), job.chunk, src, dst, path))
        offer(job.tree, job.chunk, dst, start + queue.delay(path), job.piece)
    ordered = tuple(sorted(moves, key=lambda m: (m.start, m.chunk, m.src, m.dst)))
    return TimedSchedule(
        demand=demand,
        moves=ordered,
        generator=f"trees k={forest.trees}",
        symmetry=trivial(network),
        folded=ordered,
    )
