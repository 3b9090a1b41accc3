"""Finish-time fairness: who is furthest from its fair finish bids for expired leases.

A job's rho is the time it will have taken, over what it takes alone. When leases end,
the worst-off jobs bid, and ranks go where the product of what jobs value grows most; a
job's value is 1 / rho. What they leave goes to the others.
"""

from __future__ import annotations

import heapq
import math
import random
from collections.abc import Sequence

from stretto.network.schedulers.scheduler import ClusterView, JobState

__all__ = ["OFFER", "rho", "sizes"]


def rho(standing: JobState, now_ms: float, workers: int, waits_ms: float) -> float:
    """Return a job's finish-time fairness if it gets so many workers from now on.

    With none it waits, and has all of its own afterwards.
    """
    job = standing.job
    many = workers or job.workers
    left = (job.iterations - standing.done) / job.work_of(many) * job.period_of(many)
    gone = now_ms - job.arrives_ms + (0.0 if workers else waits_ms)
    return (gone + left) / job.alone_ms


def sizes(standing: JobState) -> list[int]:
    """Return the numbers of workers that a job may have: all, half, and so on."""
    workers, found = standing.job.workers, []
    while workers and not standing.job.ranks:
        found.append(workers)
        workers //= 2
    return sorted(found) or [standing.job.workers]


class Themis:
    """Themis: leases, and an auction among the jobs that are treated worst."""

    name, packs = "themis", True

    def __init__(self, *, lease_ms: float = 60_000.0, others: float = 0.8) -> None:
        """Set how long a lease is, and which share of the jobs does not bid."""
        self.lease_ms, self._others = lease_ms, others
        self._ends: dict[str, float] = {}

    def grants(self, view: ClusterView, draw: random.Random) -> dict[str, int]:
        """Keep those whose lease goes on; let the others bid for the rest."""
        now, held = view.now_ms, dict[str, int]()
        for standing in view.jobs:
            name = standing.job.name
            if standing.ranks and self._ends.get(name, 0.0) > now + 1e-6:
                held[name] = len(standing.ranks)
        free = view.machine.num_ranks - sum(held.values())
        asking = [s for s in view.jobs if s.job.name not in held]
        asking.sort(
            key=lambda s: (-rho(s, now, 0, self.lease_ms), s.job.arrives_ms, s.job.name)
        )
        bidding = math.ceil(len(asking) * (1 - self._others))
        for some in (asking[:bidding], asking[bidding:]):
            won = self._auction(some, now, free)
            free -= sum(won.values())
            held |= won
        for name in held:
            if self._ends.get(name, 0.0) <= now + 1e-6:
                self._ends[name] = now + self.lease_ms
        return held

    def _auction(
        self, bids: Sequence[JobState], now: float, free: int
    ) -> dict[str, int]:
        """Give ranks where the product of values grows most for each of them."""
        won: dict[str, int] = {}
        heap: list[tuple[float, int, int, int]] = []

        def bid(index: int, has: int) -> None:
            standing = bids[index]
            value = rho(standing, now, has, self.lease_ms)
            for many in sizes(standing):
                if many > has:
                    gain = math.log(value / rho(standing, now, many, self.lease_ms))
                    heapq.heappush(heap, (-gain / (many - has), index, many, has))

        for index in range(len(bids)):
            bid(index, 0)
        while heap and free:
            _, index, many, had = heapq.heappop(heap)
            name = bids[index].job.name
            if won.get(name, 0) == had and many - had <= free:
                free -= many - had
                won[name] = many
                bid(index, many)
        return won


OFFER = Themis
