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
from stretto.synth.network.model import Hop, microseconds
from stretto.synth.network.symmetry import Symmetry
from stretto.synth.network.without_switches import go_on
from stretto.synth.schedules.schedule import Chunk, Demand, Move, Schedule
from stretto.synth.schedules.unfold import representatives, unfold

__all__ = ["Booking", "greedy"]


def greedy(
    demand: Demand,
    symmetry: Symmetry,
    *,
    seed: int = 0,
    enter_once: bool = True,
    allowed: Callable[[Chunk, Hop], bool] | None = None,
    check: Callable[[], None] = go_on,
) -> Schedule:
    """Return a schedule for data that may be copied: all_gather, broadcast.

    `enter_once` lets a chunk cross into each box only once, which saves the links that
    are scarce; without it the nearest copy is taken. `check` is called all the time and
    may raise, to give up.
    """
    booking = Booking(demand, symmetry, seed, allowed)
    booking.check = check
    for chunk in booking.chunks.values():
        booking.hold(chunk, chunk.origin, Fraction(0))
    booking.book(enter_once=enter_once)
    if missing := sorted(i for i, count in booking.left.items() if count):
        raise TopologyError(
            f"{demand.network.name}: greedy cannot deliver chunks {missing[:8]};"
            " want a way to every rank (enter_once=False allows more)"
        )
    return unfold(demand, booking.moves, symmetry, f"greedy seed={seed}")


class Booking:
    """Who holds what since when, when links are free, and what could come next."""

    def __init__(
        self,
        demand: Demand,
        symmetry: Symmetry,
        seed: int,
        allowed: Callable[[Chunk, Hop], bool] | None,
    ) -> None:
        kept = set(representatives(demand, symmetry))
        self.chunks = {c.number: c for c in demand.chunks() if c.number in kept}
        self.left = {
            c.number: len(set(c.wanted) - {c.origin}) for c in self.chunks.values()
        }
        self.moves: list[Move] = []
        self.check: Callable[[], None] = go_on
        self._demand, self._network = demand, demand.network
        self._orbit, self._images = symmetry.link_orbit, symmetry.images
        self._allowed = allowed
        self._chance = random.Random(seed)
        self._leaving = self._network.leaving()
        self._hops: dict[int, list[Hop]] = {}
        self._free: dict[int, Fraction] = {}
        self._have: dict[tuple[int, int], Fraction] = {}
        self._inside: set[tuple[int, int]] = set()
        self._times: dict[tuple[Fraction, Fraction, int], Fraction] = {}
        self._heap: list[tuple[Fraction, int, float, int, Hop]] = []

    def hold(self, c: Chunk, rank: int, when: Fraction) -> None:
        """Give a rank a chunk, and offer it to all that the rank can reach."""
        self.check()
        self._have[c.number, rank] = when
        self._inside.add((c.number, self._network.box[rank]))
        for hop in self._hops_of(rank):
            if (c.number, hop.dst) in self._have:
                continue
            if self._allowed is None or self._allowed(c, hop):
                self._offer(c, hop, when)

    def book(self, *, enter_once: bool) -> None:
        """Book the transfer that would arrive first until all have what they want."""
        box = self._network.box
        while self._heap and any(self.left.values()):
            arrival, _, _, number, hop = heapq.heappop(self._heap)
            c = self.chunks[number]
            if (number, hop.dst) in self._have or not self.left[number]:
                continue
            crosses = box[hop.src] != box[hop.dst]
            if crosses and enter_once and (number, box[hop.dst]) in self._inside:
                continue
            known = self._have[number, hop.src]
            start = self._start(hop, known)
            if start + self._crossing(c.share, hop) > arrival:
                self._offer(c, hop, known)  # its links were booked meanwhile
                continue
            for e in hop.links:
                self._free[self._orbit[e]] = start + self._took(c.share, e)
            self.moves.append(Move(start, number, hop.src, hop.dst, hop.links))
            self.left[number] -= hop.dst in c.wanted
            self.hold(c, hop.dst, arrival)

    def _hops_of(self, rank: int) -> list[Hop]:
        if rank not in self._hops:
            self._hops[rank] = list(self._network.hops(rank, self._leaving))
        return self._hops[rank]

    def _offer(self, c: Chunk, hop: Hop, known: Fraction) -> None:
        arrival = self._start(hop, known) + self._crossing(c.share, hop)
        local = int(self._network.box[hop.src] == self._network.box[hop.dst])
        entry = (arrival, local, self._chance.random(), c.number, hop)
        heapq.heappush(self._heap, entry)

    def _start(self, hop: Hop, known: Fraction) -> Fraction:
        return max(known, *(self._free.get(self._orbit[e], known) for e in hop.links))

    def _crossing(self, share: Fraction, hop: Hop) -> Fraction:
        return max(self._took(share, e) for e in hop.links) + hop.alpha

    def _took(self, share: Fraction, e: int) -> Fraction:
        """Return how long a link serves a chunk and its images."""
        key = (share, self._network.links[e].rate, self._images[e])
        if key not in self._times:
            moved = self._demand.nbytes * share * key[2]
            self._times[key] = microseconds(moved, key[1])
        return self._times[key]
