"""Links that serve whoever waits, the most urgent first, in exact time.

A transfer needs all its links at once. It waits at the first that is busy; a link that
becomes free asks its most urgent waiter, so nobody is asked in vain twice.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Iterator
from fractions import Fraction
from typing import NamedTuple

from stretto.synth.network.model import microseconds
from stretto.synth.schedules.schedule import Demand

__all__ = ["LinkQueue", "ReadyTransfer"]


class ReadyTransfer(NamedTuple):
    """A transfer that is ready; the smallest is the most urgent."""

    rank: int
    piece: int
    tree: int
    chunk: int
    path: tuple[int, ...]


class LinkQueue:
    """The links of a network and who waits for them; all chunks are equal."""

    def __init__(self, demand: Demand) -> None:
        links = demand.network.links
        nbytes = demand.nbytes * next(demand.chunks()).share
        exact = {rate: microseconds(nbytes, rate) for rate in {k.rate for k in links}}
        self._per_us = math.lcm(
            *(t.denominator for t in exact.values()),
            *(k.alpha.denominator for k in links),
        )
        self._taken = [int(exact[k.rate] * self._per_us) for k in links]
        self._alpha = [int(k.alpha * self._per_us) for k in links]
        self._free = [0] * len(links)
        self._waiting: list[list[ReadyTransfer]] = [[] for _ in links]
        self._ready: list[tuple[int, ReadyTransfer]] = []
        self._events: list[tuple[int, int]] = []

    def us(self, ticks: int) -> Fraction:
        """Return a time in microseconds."""
        return Fraction(ticks, self._per_us)

    def takes(self, link: int) -> int:
        """Return the ticks that a transfer occupies a link."""
        return self._taken[link]

    def delay(self, path: tuple[int, ...]) -> int:
        """Return the ticks from a transfer's start to its arrival."""
        return max(self._taken[e] for e in path) + sum(self._alpha[e] for e in path)

    def offer(self, when: int, job: ReadyTransfer) -> None:
        """Add a transfer that may start at a time."""
        heapq.heappush(self._ready, (when, job))

    def run(self) -> Iterator[tuple[int, ReadyTransfer]]:
        """Yield every transfer with its start; more may be offered meanwhile."""
        while self._ready or self._events:
            now = min(q[0][0] for q in (self._ready, self._events) if q)
            freed = set()
            while self._ready and self._ready[0][0] == now:
                _, job = heapq.heappop(self._ready)
                heapq.heappush(self._waiting[job.path[0]], job)
                freed.add(job.path[0])
            while self._events and self._events[0][0] == now:
                freed.add(heapq.heappop(self._events)[1])
            yield from self._serve(freed, now)

    def _serve(self, freed: set[int], now: int) -> Iterator[tuple[int, ReadyTransfer]]:
        """Start what can start, the most urgent of all links first."""
        first: list[tuple[ReadyTransfer, int]] = []

        def ask(link: int) -> None:
            if self._waiting[link] and self._free[link] <= now:
                heapq.heappush(first, (heapq.heappop(self._waiting[link]), link))

        for link in freed:
            ask(link)
        while first:
            job, link = heapq.heappop(first)
            busy = next((e for e in job.path if self._free[e] > now), None)
            if busy is not None:
                heapq.heappush(self._waiting[busy], job)
            else:
                for e in job.path:
                    self._free[e] = now + self._taken[e]
                    heapq.heappush(self._events, (self._free[e], e))
                yield now, job
            ask(link)
