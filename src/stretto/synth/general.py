"""The general way: the best fractions, whole pieces, then a clock for every transfer.

It serves any directed network with capacities and any group of its ranks, whatever is
broken or uneven. Data that spread or sums that flow take trees, what only one rank
wants takes paths; both come from a linear program that knows only links, so relays and
ways over any switch count as capacity.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import replace
from fractions import Fraction

import numpy as np

from stretto.synth.bounds import Bound
from stretto.synth.clock import Clock
from stretto.synth.exchange import Paths, decompose
from stretto.synth.flows import exchange_flow
from stretto.synth.packing import Packing, Tree, pack
from stretto.synth.pieces import Owner, shared_out
from stretto.synth.schedule import Demand, Move, Schedule
from stretto.synth.symmetry import trivial
from stretto.synth.timing import Job, Yard, best_starts

__all__ = ["by_paths", "by_trees"]

_MOST_MOVES = 24_000


def tree_packing(demand: Demand, limit: Bound, clock: Clock, pieces: int = 16) -> Packing:
    """Return the best packing of trees for a collective."""
    network = demand.network
    rate = float(limit.algbw)
    parts: dict[int, float] | None
    match demand.collective:
        case "all_gather" | "reduce_scatter":
            members = network.members
            units = demand.weights or (1,) * len(members)
            parts = {r: u / sum(units) for r, u in zip(members, units, strict=True)}
        case "broadcast" | "reduce":
            parts = {demand.root: 1.0}
        case _:
            parts = None
    return pack(
        network,
        parts,
        spread=not demand.combines or demand.collective == "all_reduce",
        sums=demand.combines,
        clock=clock,
        goal=1 / rate,
        pieces=pieces,
    )


def by_trees(
    demand: Demand, packing: Packing, *, clock: Clock, goal: Fraction, seed: int = 0
) -> Schedule | None:
    """Return the schedule that sends the demand's pieces down a packing's trees."""
    chunks = list(demand.chunks())
    network = demand.network
    rates = np.array([float(k.rate) for k in network.links])
    loads = np.zeros((len(packing.trees), len(rates)))
    for i, tree in enumerate(packing.trees):
        for _, _, way in tree.ways:
            for e in way:
                loads[i, e] += 1 / rates[e]
    by_root: dict[tuple[int, bool], list[int]] = defaultdict(list)
    for i, tree in enumerate(packing.trees):
        by_root[tree.root, tree.sums].append(i)
    owners, given = [], {}
    parts = _parts(demand, packing, by_root)
    for key, routes in sorted(by_root.items()):
        mine = parts[key[0]]
        if not mine:
            continue
        total = sum(packing.weights[i] for i in routes)
        weights = tuple(packing.weights[i] / total for i in routes)
        size = float(chunks[mine[0]].share)
        owner = Owner(routes=tuple(routes), weights=weights, pieces=len(mine), size=size)
        owners.append(owner)
        given[key] = mine
    counts = shared_out(owners, loads, seed=seed, check=lambda: clock.left <= 0)
    jobs: list[Job] = []
    moves: list[tuple[int, int, int, tuple[int, ...], bool]] = []
    chosen: dict[tuple[int, bool], list[Tree]] = {}
    for key, mine in given.items():
        trees = [packing.trees[i] for i in by_root[key] for _ in range(counts[i])]
        chosen[key] = _mixed(trees, len(mine))
    root_of: dict[int, int] = {}
    for (root, _), mine in given.items():
        for chunk in mine:
            root_of[chunk] = root
    for chunk in sorted(root_of):
        root = root_of[chunk]
        share = chunks[chunk].share
        mine = given.get((root, True)) or given[root, False]
        place = mine.index(chunk)
        wave = place / len(mine)
        done: list[int] = []
        if (root, True) in chosen:
            arrived: dict[int, list[int]] = defaultdict(list)
            for u, v, way in reversed(chosen[root, True][place].ways):
                arrived[v].append(len(jobs))
                jobs.append(Job(way, share, tuple(arrived[u]), wave))
                moves.append((chunk, u, v, way, True))
            done = arrived[root]
        if (root, False) in chosen:
            came = {root: tuple(done)}
            for u, v, way in chosen[root, False][place].ways:
                came[v] = (len(jobs),)
                jobs.append(Job(way, share, came[u], wave))
                moves.append((chunk, u, v, way, False))
    if demand.collective == "all_reduce":
        demand = replace(demand, owners=tuple(root_of[c] for c in sorted(root_of)))
    return _timed(demand, jobs, moves, "trees, packed", clock, goal, seed)


def _parts(
    demand: Demand, packing: Packing, by_root: dict[tuple[int, bool], list[int]]
) -> dict[int, list[int]]:
    """Return the chunks of every root; of all_reduce as many as its trees carry."""
    found: dict[int, list[int]] = defaultdict(list)
    chunks = list(demand.chunks())
    if demand.collective != "all_reduce":
        for c in chunks:
            found[c.origin].append(c.number)
        return found
    roots = sorted({root for root, _ in by_root})
    shares = [sum(packing.weights[i] for i in by_root[r, False]) for r in roots]
    from stretto.synth.pieces import _rounded

    whole = _rounded(
        Owner(
            routes=tuple(roots),
            weights=tuple(s / sum(shares) for s in shares),
            pieces=len(chunks),
        )
    )
    at = 0
    for r, n in zip(roots, whole, strict=True):
        found[r] = list(range(at, at + n))
        at += n
    return found


def _mixed(trees: list[Tree], count: int) -> list[Tree]:
    """Return the trees of one root in turns, those of each kind evenly spread."""
    assert len(trees) == count
    many: dict[Tree, int] = defaultdict(int)
    for t in trees:
        many[t] += 1
    placed = sorted(
        ((j + 0.5) / n, i, t)
        for i, (t, n) in enumerate(many.items())
        for j in range(n)
    ) if False else sorted(
        (((j + 0.5) / n, i) for i, (t, n) in enumerate(many.items()) for j in range(n))
    )
    kinds = list(many)
    return [kinds[i] for _, i in placed]


def _timed(
    demand: Demand,
    jobs: list[Job],
    moves: list[tuple[int, int, int, tuple[int, ...], bool]],
    name: str,
    clock: Clock,
    goal: Fraction,
    seed: int,
) -> Schedule:
    yard = Yard.of(demand.network, demand.nbytes, jobs)
    plan = best_starts(
        yard, clock=clock, seed=seed, goal=int(goal / yard.us_per_tick)
    )
    planned = sorted(
        (
            Move(start * yard.us_per_tick, chunk, u, v, way, combine)
            for start, (chunk, u, v, way, combine) in zip(plan.starts, moves, strict=True)
        ),
        key=lambda m: m[:4],
    )
    return Schedule(
        demand=demand,
        moves=tuple(planned),
        generator=name,
        symmetry=trivial(demand.network),
        folded=tuple(planned),
        listed=True,
    )


def by_paths(
    demand: Demand, paths: Paths, *, clock: Clock, goal: Fraction, seed: int = 0
) -> Schedule:
    """Return the schedule that sends the demand's pieces over a flow's paths."""
    network = demand.network
    members = {r: i for i, r in enumerate(network.members)}
    n, k = len(members), demand.split
    pairs = demand.collective == "all_to_all"
    rates = np.array([float(x.rate) for x in network.links])
    routes: list[tuple[int, ...]] = []
    owners = []
    keys = []
    for (src, dst), ways in sorted(paths.items()):
        first = len(routes)
        routes += ways
        total = sum(ways.values())
        owners.append(
            Owner(
                routes=tuple(range(first, len(routes))),
                weights=tuple(w / total for w in ways.values()),
                pieces=k,
                size=float(demand.share(members[dst])),
            )
        )
        keys.append((src, dst))
    loads = np.zeros((len(routes), len(rates)))
    for i, path in enumerate(routes):
        for e in path:
            loads[i, e] += 1 / rates[e]
    counts = shared_out(owners, loads, seed=seed, check=lambda: clock.left <= 0)
    jobs: list[Job] = []
    moves: list[tuple[int, int, int, tuple[int, ...], bool]] = []
    for (src, dst), owner in zip(keys, owners, strict=True):
        base = (members[dst] + (members[src] * n if pairs else 0)) * k
        share = demand.share(members[dst])
        taken = [routes[r] for r in owner.routes for _ in range(counts[r])]
        for j, path in enumerate(taken):
            before: tuple[int, ...] = ()
            for way in _hops(demand, path):
                jobs.append(Job(way, share, before, j / k))
                before = (len(jobs) - 1,)
                u, v = network.links[way[0]].src, network.links[way[-1]].dst
                moves.append((base + j, u, v, way, False))
    return _timed(demand, jobs, moves, "paths, packed", clock, goal, seed)


def _hops(demand: Demand, path: tuple[int, ...]) -> Iterator[tuple[int, ...]]:
    """Yield the parts of a path between ranks, which store and forward."""
    part: list[int] = []
    for e in path:
        part.append(e)
        if demand.network.links[e].dst < demand.network.num_ranks:
            yield tuple(part)
            part = []
