"""Greedy among some of the ranks: the nearest who wants a chunk, by way of any rank.

Where others only pass data on, booking whatever arrives first would fill links with
what nobody asked for. So a whole way is booked at once: from who has the chunk, over
ranks that relay it, to the member that it can reach first.
"""

from __future__ import annotations

import bisect
import heapq
import itertools
from collections import defaultdict
from collections.abc import Callable
from typing import NamedTuple

from stretto.errors import TopologyError
from stretto.synth.direct.greedy import Booking
from stretto.synth.network.model import Hop
from stretto.synth.network.symmetry import Symmetry
from stretto.synth.network.without_switches import go_on
from stretto.synth.schedules.schedule import Chunk, Demand, Schedule
from stretto.synth.schedules.unfold import unfold

__all__ = ["by_detours"]


def by_detours(
    demand: Demand,
    symmetry: Symmetry,
    *,
    seed: int = 0,
    enter_once: bool = True,
    allowed: Callable[[Chunk, Hop], bool] | None = None,
    check: Callable[[], None] = go_on,
) -> Schedule:
    """Return a schedule for data that may be copied, like `greedy`."""
    booking = _Detours(demand, symmetry, seed, allowed)
    booking.check = check
    booking.book_ways(enter_once=enter_once)
    if missing := sorted(n for n, ranks in booking.missing.items() if ranks):
        raise TopologyError(
            f"{demand.network.name}: no way for chunks {missing[:8]}; want a way to "
            "every member (enter_once=False allows more)"
        )
    return unfold(demand, booking.moves, symmetry, f"detours seed={seed}")


class _Way(NamedTuple):
    """How a chunk comes to a rank, and when."""

    arrival: int
    hop: Hop | None
    """The last one; None: the rank has the chunk."""


class _Detours(Booking):
    def __init__(
        self,
        demand: Demand,
        symmetry: Symmetry,
        seed: int,
        allowed: Callable[[Chunk, Hop], bool] | None,
    ) -> None:
        super().__init__(demand, symmetry, seed, allowed)
        self.missing = {
            c.number: set(c.wanted) - {c.origin} for c in self.chunks.values()
        }
        self._busy: dict[int, list[tuple[int, int]]] = defaultdict(list)
        """By orbit of links, when they serve, in order: ways fit in between."""
        self._held = {n: {c.origin: 0} for n, c in self.chunks.items()}

    def book_ways(self, *, enter_once: bool) -> None:
        """Book, again and again, the way that would end first."""
        queue = [(0, self._chance.random(), n) for n in self.chunks]
        heapq.heapify(queue)
        while queue:
            self.check()
            known, _, number = heapq.heappop(queue)
            if not self.missing[number]:
                continue
            found = self._nearest(self.chunks[number], enter_once)
            if found is None:
                continue
            arrival, hops = found
            if arrival > known and queue and arrival > queue[0][0]:
                heapq.heappush(queue, (arrival, self._chance.random(), number))
                continue  # others may be first
            self._book(self.chunks[number], hops)
            heapq.heappush(queue, (arrival, self._chance.random(), number))

    def _book(self, c: Chunk, hops: list[Hop]) -> None:
        held = self._held[c.number]
        for hop in hops:
            start = self._soonest(c, hop, held[hop.src])
            for e in hop.links:
                end = start + self._taken[c.number][e]
                bisect.insort(self._busy[self._orbit[e]], (start, end))
            held[hop.dst] = start + self._crossing(c, hop)
            self._move(start, c.number, hop)
        self.missing[c.number].discard(hops[-1].dst)

    def _nearest(self, c: Chunk, enter_once: bool) -> tuple[int, list[Hop]] | None:
        """Return the earliest way to a member that lacks the chunk."""
        held, missing = self._held[c.number], self.missing[c.number]
        box = self._network.box
        inside = {box[rank] for rank in held} if enter_once else set()
        ways = {rank: _Way(when, None) for rank, when in held.items()}
        order = itertools.count()
        heap = [(when, False, next(order), rank) for rank, when in held.items()]
        heapq.heapify(heap)
        done: set[int] = set()
        while heap:
            known, _, _, rank = heapq.heappop(heap)
            if rank in done:
                continue
            done.add(rank)
            if rank in missing:
                return known, _traced(ways, rank)
            for hop in self._hops_of(rank):
                if hop.dst in done or hop.dst in held:
                    continue
                if box[hop.dst] != box[rank] and box[hop.dst] in inside:
                    continue
                if self._allowed is not None and not self._allowed(c, hop):
                    continue
                start = self._soonest(c, hop, known)
                arrival = start + self._crossing(c, hop)
                if hop.dst not in ways or arrival < ways[hop.dst].arrival:
                    ways[hop.dst] = _Way(arrival, hop)
                    relays = hop.dst not in missing
                    heapq.heappush(heap, (arrival, relays, next(order), hop.dst))
        return None

    def _soonest(self, c: Chunk, hop: Hop, known: int) -> int:
        """Return when all links of a hop are free for as long as they serve it."""
        start, before = known, None
        while start != before:
            before = start
            for e in hop.links:
                busy, took = self._busy[self._orbit[e]], self._taken[c.number][e]
                at = max(0, bisect.bisect_right(busy, (start,)) - 1)
                while at < len(busy) and busy[at][0] < start + took:
                    start = max(start, busy[at][1])
                    at += 1
        return start


def _traced(ways: dict[int, _Way], rank: int) -> list[Hop]:
    hops: list[Hop] = []
    while (hop := ways[rank].hop) is not None:
        hops.append(hop)
        rank = hop.src
    return hops[::-1]
