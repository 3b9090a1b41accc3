"""Earliest arrival first: a greedy schedule on the time-expanded network.

Among all transfers of a chunk from a rank that has it to one that lacks it, the one
that would arrive first is booked, again and again. It copes with thousands of ranks and
with machines that have no symmetry; the exact models start from it.
"""

from __future__ import annotations

import heapq
import math
import random
from collections.abc import Callable
from fractions import Fraction

from stretto.errors import TopologyError
from stretto.synth.network.model import SwitchPath, microseconds
from stretto.synth.network.symmetry import Symmetry
from stretto.synth.network.without_switches import never_stop
from stretto.synth.schedules.schedule import DataChunk, Demand, TimedMove, TimedSchedule
from stretto.synth.schedules.unfold import representatives, unfold

__all__ = ["greedy"]


def greedy(
    demand: Demand,
    symmetry: Symmetry,
    *,
    seed: int = 0,
    enter_once: bool = True,
    allowed: Callable[[DataChunk, SwitchPath], bool] | None = None,
    check: Callable[[], None] = never_stop,
) -> TimedSchedule:
    """Return a schedule for data that may be copied: all_gather, broadcast.

    `enter_once` lets a chunk cross into each box only once, which saves the links that
    are scarce; without it the nearest copy is taken. `check` is called all the time and
    may raise, to give up. Ranks that only relay take part like others.
    """
    booking = _Booking(demand, symmetry, seed, allowed)
    booking.check = check
    for chunk in booking.chunks.values():
        booking.hold(chunk, chunk.origin, 0)
    booking.book(enter_once=enter_once)
    if missing := sorted(i for i, count in booking.left.items() if count):
        raise TopologyError(
            f"{demand.network.name}: greedy cannot deliver chunks {missing[:8]};"
            " want a way to every rank (enter_once=False allows more)"
        )
    return unfold(demand, booking.asked_for(), symmetry, f"greedy seed={seed}")


class _Booking:
    """Who holds what since when, when links are free, and what could come next."""

    def __init__(
        self,
        demand: Demand,
        symmetry: Symmetry,
        seed: int,
        allowed: Callable[[DataChunk, SwitchPath], bool] | None,
    ) -> None:
        kept = set(representatives(demand, symmetry))
        self.chunks = {c.number: c for c in demand.chunks() if c.number in kept}
        self.left = {
            c.number: len(set(c.wanted) - {c.origin}) for c in self.chunks.values()
        }
        self.moves: list[TimedMove] = []
        self.check: Callable[[], None] = never_stop
        self._demand, self._network = demand, demand.network
        self._orbit, self._images = symmetry.link_orbit, symmetry.images
        self._allowed = allowed
        self._chance = random.Random(seed)
        self._leaving = self._network.leaving()
        self._hops: dict[int, list[SwitchPath]] = {}
        self._free: dict[int, int] = {}
        self._have: dict[tuple[int, int], int] = {}
        self._inside: set[tuple[int, int]] = set()
        self._heap: list[tuple[int, int, float, int, SwitchPath]] = []
        self._per_us, self._taken = self._ticks()
        self._crossings: dict[tuple[int, tuple[int, ...]], int] = {}

    def _ticks(self) -> tuple[int, dict[int, list[int]]]:
        """Return ticks in a microsecond, and those that a link serves a chunk.

        A link serves all images of a chunk. Ticks are so fine that nothing is rounded.
        """
        links, nbytes = self._network.links, self._demand.nbytes
        exact = {
            share: [
                microseconds(nbytes * share * images, k.rate)
                for k, images in zip(links, self._images, strict=True)
            ]
            for share in {c.share for c in self.chunks.values()}
        }
        per_us = math.lcm(
            *{t.denominator for row in exact.values() for t in row},
            *{k.alpha.denominator for k in links},
        )
        ticks = {share: [int(t * per_us) for t in row] for share, row in exact.items()}
        return per_us, {n: ticks[c.share] for n, c in self.chunks.items()}

    def hold(self, c: DataChunk, rank: int, when: int) -> None:
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
            if start + self._crossing(c, hop) > arrival:
                self._offer(c, hop, known)  # its links were booked meanwhile
                continue
            for e in hop.links:
                self._free[self._orbit[e]] = start + self._taken[c.number][e]
            self._move(start, number, hop)
            self.left[number] -= hop.dst in c.wanted
            self.hold(c, hop.dst, arrival)

    def asked_for(self) -> list[TimedMove]:
        """Return the moves but for what relays got and nobody wanted."""
        moves, sent = [], set[tuple[int, int]]()
        for m in reversed(self.moves):
            if m.dst in self.chunks[m.chunk].wanted or (m.chunk, m.dst) in sent:
                sent.add((m.chunk, m.src))
                moves.append(m)
        return moves[::-1]

    def _hops_of(self, rank: int) -> list[SwitchPath]:
        if rank not in self._hops:
            self._hops[rank] = list(self._network.hops(rank, self._leaving))
        return self._hops[rank]

    def _move(self, start: int, number: int, hop: SwitchPath) -> None:
        when = Fraction(start, self._per_us)
        self.moves.append(TimedMove(when, number, hop.src, hop.dst, hop.links))

    def _offer(self, c: DataChunk, hop: SwitchPath, known: int) -> None:
        arrival = self._start(hop, known) + self._crossing(c, hop)
        local = int(self._network.box[hop.src] == self._network.box[hop.dst])
        entry = (arrival, local, self._chance.random(), c.number, hop)
        heapq.heappush(self._heap, entry)

    def _start(self, hop: SwitchPath, known: int) -> int:
        return max(known, *(self._free.get(self._orbit[e], known) for e in hop.links))

    def _crossing(self, c: DataChunk, hop: SwitchPath) -> int:
        key = c.number, hop.links
        if key not in self._crossings:
            alpha = sum(self._network.links[e].alpha for e in hop.links)
            taken = self._taken[c.number]
            most = max(taken[e] for e in hop.links)
            self._crossings[key] = most + int(alpha * self._per_us)
        return self._crossings[key]
