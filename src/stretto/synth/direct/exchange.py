"""all_to_all at its bound: the optimal flow, cut into paths, then put on the clock.

The flow of `flows.exchange_flow` is taken apart into paths. Every pair's k pieces are
given to paths so that the fullest link is as empty as can be, and the transfers are
booked one after another, those with the longest way still to go first.
"""

from __future__ import annotations

import heapq
from collections import Counter, defaultdict
from fractions import Fraction
from typing import Any, NamedTuple, TypeAlias

from stretto.synth.bounds.flows import ExchangeFlow
from stretto.synth.network.model import Network, microseconds
from stretto.synth.network.symmetry import Symmetry
from stretto.synth.schedules.schedule import Demand, TimedMove, TimedSchedule
from stretto.synth.schedules.unfold import unfold
from stretto.synth.solvers import cp_model, solved

__all__ = ["Paths", "decompose", "exchange"]

_Path: TypeAlias = tuple[int, ...]
"""Links from a source to a destination, over switches and relaying ranks."""
Paths: TypeAlias = dict[tuple[int, int], dict[_Path, float]]
"""For every source and destination, paths and what share each carries."""


def exchange(
    demand: Demand, symmetry: Symmetry, paths: Paths, *, even: bool = False
) -> TimedSchedule:
    """Return a schedule of all_to_all, or of scatter, that follows a flow's paths.

    `even` lets all paths make the same progress, as the flow does; else whoever has the
    longest way still to go is first.
    """
    network = demand.network
    chosen = _choose(demand, symmetry, paths)
    members = {r: i for i, r in enumerate(network.members)}
    count, k = len(members), demand.split
    jobs: list[_Job] = []
    for (src, dst), ways in sorted(chosen.items()):
        pairs = demand.collective == "all_to_all"
        base = (members[dst] + (members[src] * count if pairs else 0)) * k
        share = demand.share(members[dst])
        seen: Counter[_Path] = Counter()
        for j, path in enumerate(ways):
            progress = Fraction(seen[path], ways.count(path)) if even else Fraction(0)
            seen[path] += 1
            jobs.append(_Job(base + j, share, progress, _segments(network, path)))
    moves = _book(demand, symmetry, jobs)
    name = "exchange, even" if even else "exchange"
    return unfold(demand, moves, symmetry, name)


class _Job(NamedTuple):
    """One piece and the hops that it takes."""

    chunk: int
    share: Fraction
    progress: Fraction
    """Which part of its path's pieces go first."""
    hops: list[_Path]


def decompose(network: Network, flow: ExchangeFlow) -> Paths:
    """Return the paths of a flow."""
    found: Paths = {}
    for s, load in flow.flows.items():
        left = dict(load)
        into: dict[int, list[int]] = defaultdict(list)
        for e in left:
            into[network.links[e].dst].append(e)
        for v in network.members:
            if v == s:
                continue
            paths: dict[_Path, float] = defaultdict(float)
            whole = flow.achieved * flow.units[v]
            missing = whole
            while missing > 1e-6 * whole:
                path = _walk_back(network, s, v, into, left, 1e-7 * flow.achieved)
                amount = min(missing, *(left[e] for e in path)) if path else missing
                if not path:
                    break  # what is left is the solver's rounding
                for e in path:
                    left[e] -= amount
                paths[path] += amount / whole
                missing -= amount
            found[s, v] = dict(paths)
    return found


def _walk_back(
    network: Network,
    source: int,
    node: int,
    into: dict[int, list[int]],
    left: dict[int, float],
    least: float,
) -> _Path:
    """Return the shortest path of links that still carry flow, found from its end."""
    after: dict[int, int] = {}
    queue = [node]
    for v in queue:
        for e in sorted(into[v], key=lambda e: -left[e]):
            u = network.links[e].src
            if left[e] > least and u not in after and u != node:
                after[u] = e
                queue.append(u)
        if source in after:
            break
    path: list[int] = []
    at = source
    while at != node:
        if at not in after:
            return ()
        path.append(after[at])
        at = network.links[after[at]].dst
    return tuple(path)


def _choose(
    demand: Demand, symmetry: Symmetry, paths: Paths
) -> dict[tuple[int, int], list[_Path]]:
    """Give each pair's k pieces to its paths so that no link is fuller than need be."""
    orbit = symmetry.link_orbit
    sizes = {o: orbit.count(o) for o in set(orbit)}
    names = cp_model()
    cp: Any = names.CpModel()
    scale = 10**6
    load: dict[int, list[Any]] = defaultdict(list)
    counts: dict[tuple[tuple[int, int], _Path], Any] = {}
    members = {r: i for i, r in enumerate(demand.network.members)}
    mean = Fraction(1, len(members) * demand.split)
    slowest = float(min(k.rate for k in demand.network.links))
    for pair, ways in paths.items():
        for path in ways:
            n = cp.new_int_var(0, demand.split, "")
            counts[pair, path] = n
            cp.add_hint(n, round(ways[path] * demand.split))
            size = float(demand.share(members[pair[1]]) / mean)
            for e in path:
                per = size * symmetry.order / sizes[orbit[e]]
                cost = per * slowest / float(demand.network.links[e].rate)
                load[orbit[e]].append(round(cost * scale) * n)
        cp.add(sum(counts[pair, p] for p in ways) == demand.split)
    worst = cp.new_int_var(0, 10**12, "")
    for terms in load.values():
        cp.add(sum(terms) <= worst)
    cp.minimize(worst)
    solver = names.CpSolver()
    solver.parameters.num_workers = 1
    solver.parameters.max_deterministic_time = 5.0
    solver.parameters.relative_gap_limit = 1e-3
    status = solved(solver, cp)
    assert status in (names.OPTIMAL, names.FEASIBLE)  # every pair has a path
    return {
        pair: [p for p in ways for _ in range(solver.value(counts[pair, p]))]
        for pair, ways in paths.items()
    }


def _segments(network: Network, path: _Path) -> list[_Path]:
    """Cut a path where ranks store and forward."""
    cut: list[_Path] = []
    part: list[int] = []
    for e in path:
        part.append(e)
        if network.links[e].dst < network.num_ranks:
            cut.append(tuple(part))
            part = []
    return cut


def _book(
    demand: Demand,
    symmetry: Symmetry,
    jobs: list[_Job],
) -> list[TimedMove]:
    """Book every transfer at its earliest time; ties go to the longest way left."""
    links, orbit = demand.network.links, symmetry.link_orbit

    def took(share: Fraction, part: _Path) -> Fraction:
        rate = min(links[e].rate for e in part)
        alpha = sum((links[e].alpha for e in part), Fraction(0))
        return microseconds(demand.nbytes * share, rate) + alpha

    free: dict[int, Fraction] = defaultdict(Fraction)
    tails: list[list[Fraction]] = []
    heap: list[tuple[Fraction, Fraction, Fraction, int, int]] = []
    for i, job in enumerate(jobs):
        times = [took(job.share, p) for p in job.hops]
        tails.append([sum(times[j + 1 :], Fraction(0)) for j in range(len(times))])
        heap.append((Fraction(0), job.progress, -tails[i][0], i, 0))
    heapq.heapify(heap)
    moves = []
    while heap:
        ready, progress, tail, i, j = heapq.heappop(heap)
        index, share, _, parts = jobs[i]
        start = max(ready, *(free[orbit[e]] for e in parts[j]))
        if start > ready:
            heapq.heappush(heap, (start, progress, tail, i, j))
            continue
        for e in parts[j]:
            free[orbit[e]] = start + microseconds(demand.nbytes * share, links[e].rate)
        src, dst = links[parts[j][0]].src, links[parts[j][-1]].dst
        moves.append(TimedMove(start, index, src, dst, parts[j]))
        if j + 1 < len(parts):
            arrival = start + took(share, parts[j])
            heapq.heappush(heap, (arrival, progress, -tails[i][j + 1], i, j + 1))
    return moves
