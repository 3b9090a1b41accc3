"""Earliest arrival first: a greedy schedule on the time-expanded network.

Among all transfers of a chunk from a rank that has it to one that lacks it, the one
that would arrive first is booked, again and again. It copes with thousands of ranks and
with machines that have no symmetry; the exact models start from it.
"""

from __future__ import annotations

import heapq
import random
from collections.abc import Callable
from fractions import Fraction

from stretto.errors import TopologyError
from stretto.synth.model import Hop, microseconds
from stretto.synth.schedule import Chunk, Demand, Move, Schedule
from stretto.synth.symmetry import Symmetry
from stretto.synth.unfold import representatives, unfold

__all__ = ["greedy"]


def greedy(
    demand: Demand,
    symmetry: Symmetry,
    *,
    seed: int = 0,
    enter_once: bool = True,
    allowed: Callable[[Chunk, Hop], bool] | None = None,
) -> Schedule:
    """Return a schedule for data that may be copied: all_gather, broadcast, scatter.

    `enter_once` lets a chunk cross into each box only once, which saves the links that
    are scarce; without it the nearest copy is taken.
    """
    network = demand.network
    chance = random.Random(seed)
    leaving = network.leaving()
    kept = set(representatives(demand, symmetry))
    chunks = {c.number: c for c in demand.chunks() if c.number in kept}
    hops: dict[int, list[Hop]] = {}
    free: dict[int, Fraction] = {}
    have: dict[tuple[int, int], Fraction] = {}
    inside: set[tuple[int, int]] = set()
    heap: list[tuple[Fraction, int, float, int, Hop]] = []
    orbit, links, box = symmetry.link_orbit, network.links, network.box
    times: dict[tuple[Fraction, Fraction], Fraction] = {}
    left = {c.number: len(set(c.wanted) - {c.origin}) for c in chunks.values()}
    moves: list[Move] = []

    def took(share: Fraction, rate: Fraction) -> Fraction:
        if (share, rate) not in times:
            times[share, rate] = microseconds(demand.nbytes * share, rate)
        return times[share, rate]

    def offer(c: Chunk, hop: Hop, known: Fraction) -> None:
        start = max(known, *(free.get(orbit[e], known) for e in hop.links))
        arrival = start + took(c.share, hop.rate) + hop.alpha
        local = int(box[hop.src] == box[hop.dst])
        heapq.heappush(heap, (arrival, local, chance.random(), c.number, hop))

    def hold(c: Chunk, rank: int, when: Fraction) -> None:
        have[c.number, rank] = when
        inside.add((c.number, box[rank]))
        if rank not in hops:
            hops[rank] = list(network.hops(rank, leaving))
        for hop in hops[rank]:
            if (c.number, hop.dst) not in have and (allowed is None or allowed(c, hop)):
                offer(c, hop, when)

    for c in chunks.values():
        hold(c, c.origin, Fraction(0))
    while heap and any(left.values()):
        arrival, _, _, index, hop = heapq.heappop(heap)
        c = chunks[index]
        if (index, hop.dst) in have or not left[index]:
            continue
        crosses = box[hop.src] != box[hop.dst]
        if crosses and enter_once and (index, box[hop.dst]) in inside:
            continue
        known = have[index, hop.src]
        start = max(known, *(free.get(orbit[e], known) for e in hop.links))
        if start + took(c.share, hop.rate) + hop.alpha > arrival:
            offer(c, hop, known)
            continue
        for e in hop.links:
            free[orbit[e]] = start + took(c.share, links[e].rate)
        moves.append(Move(start, index, hop.src, hop.dst, hop.links))
        left[index] -= hop.dst in c.wanted
        hold(c, hop.dst, arrival)
    if any(left.values()):
        stuck = sorted(i for i, count in left.items() if count)
        raise TopologyError(
            f"{network.name}: greedy cannot deliver chunks {stuck[:8]};"
            " want a way to every rank (enter_once=False allows more)"
        )
    return unfold(demand, moves, symmetry, f"greedy seed={seed}")
