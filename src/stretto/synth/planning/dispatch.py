"""One plan from an order of jobs: the loop in which synthesis spends its time.

This is how it runs everywhere. Where Numba is installed, and enough plans are wanted to
pay for it, `compiled` takes over and gives the same plans sooner.
"""

from __future__ import annotations

import heapq
from typing import Any

__all__ = ["compacted", "dispatched"]


def dispatched(
    urgency: Any,
    ranks: Any,
    order: Any,
    weight: float,
    patience: float,
    way: Any,
    way_at: Any,
    way_links: Any,
    take_at: Any,
    takes: Any,
    delay: Any,
    waits: Any,
    behind_at: Any,
    behind: Any,
    left: Any,
    starts: Any,
) -> int:
    """Write when every job starts, such that nothing waits that could start.

    Of what could, the largest of `weight` x what its fullest link still has to carry +
    its urgency goes first. It may take its links for a start a little later: when the
    last of them will be free within `patience` x its own time. `ranks` and `order` are
    the order of urgency, there and back. Lists of lists are flat: those of x are from
    at[x] to at[x + 1]. `waits` and `left` are used up. Return when the last arrives.
    """
    return _Plan(
        urgency, ranks, order, weight, patience, way, way_at, way_links, take_at,
        takes, delay, waits, behind_at, behind, left, starts,
    ).made()  # fmt: skip


class _Plan:
    """What is known while a plan is made."""

    def __init__(self, *given: Any) -> None:
        (
            self.urgency, self.ranks, self.order, self.weight, self.patience,
            self.way, self.way_at, self.way_links, self.take_at, self.takes,
            self.delay, self.waits, self.behind_at, self.behind, self.left,
            self.starts,
        ) = given  # fmt: skip
        jobs, ways, links = len(self.delay), len(self.way_at) - 1, len(self.left)
        self.jobs, self.span = jobs, jobs + links
        self.free = [0] * links
        self.ready = [0] * jobs
        self.queues: list[list[int]] = [[] for _ in range(ways)]
        self.parked = [-1] * links
        """The first way that waits for a link; then `after`."""
        self.after = [-1] * ways
        self.idle = [True] * ways
        self.events = [i for i in range(jobs) if self.waits[i] == 0]
        """One number an event: a job that may start, or a link that may be free."""
        self.ends = 0

    def made(self) -> int:
        """Start every job, and return when the last arrives."""
        while self.events:
            now = self.events[0] // self.span
            asked = self._asked(now)
            if len(asked) > 1:
                asked = sorted((self._key(w), w) for _, w in asked)
            for _, w in asked:
                self._serve(now, w)
        return self.ends

    def _asked(self, now: int) -> list[tuple[float, int]]:
        """Return the ways that something may start on now."""
        events, span, jobs, way = self.events, self.span, self.jobs, self.way
        found = []
        while events and events[0] // span == now:
            event = heapq.heappop(events) % span
            if event < jobs:
                w = way[event]
                heapq.heappush(self.queues[w], self.ranks[event])
                if self.idle[w]:
                    self.idle[w] = False
                    found.append((0.0, w))
            elif self.free[event - jobs] == now:
                w = self.parked[event - jobs]
                self.parked[event - jobs] = -1
                while w >= 0:
                    found.append((0.0, w))
                    w = self.after[w]
        return found

    def _key(self, w: int) -> float:
        """Return how soon a way is served: the least first."""
        left, links = self.left, self.way_links
        fullest = 0
        for at in range(self.way_at[w], self.way_at[w + 1]):
            if left[links[at]] > fullest:
                fullest = left[links[at]]
        first = self.order[self.queues[w][0]]
        return float(-self.urgency[first] - self.weight * fullest)

    def _serve(self, now: int, w: int) -> None:
        """Start the first job of a way, or let the way wait for a link."""
        free, links, takes = self.free, self.way_links, self.takes
        queue, begins, stops = self.queues[w], self.way_at[w], self.way_at[w + 1]
        busy, begin = -1, now
        for at in range(begins, stops):
            if free[links[at]] > begin:
                busy = links[at]
                begin = free[busy]
        if begin - now > self.patience * self.delay[self.order[queue[0]]]:
            self.after[w] = self.parked[busy]
            self.parked[busy] = w
            return
        i = self.order[heapq.heappop(queue)]
        self.starts[i] = begin
        until, last = -1, -1
        shift = self.take_at[i] - begins
        for at in range(begins, stops):
            e, t = links[at], takes[at + shift]
            free[e] = begin + t
            self.left[e] -= t
            heapq.heappush(self.events, (begin + t) * self.span + self.jobs + e)
            if t > until:
                until, last = t, e
        self._arrive(i, begin + self.delay[i])
        if queue:
            self.after[w] = self.parked[last]
            self.parked[last] = w
        else:
            self.idle[w] = True

    def _arrive(self, i: int, arrives: int) -> None:
        """Let what waits for a job know when it arrives."""
        self.ends = max(self.ends, arrives)
        ready, waits = self.ready, self.waits
        for at in range(self.behind_at[i], self.behind_at[i + 1]):
            d = self.behind[at]
            waits[d] -= 1
            ready[d] = max(ready[d], arrives)
            if waits[d] == 0:
                heapq.heappush(self.events, ready[d] * self.span + d)


def compacted(
    order: Any,
    way: Any,
    way_at: Any,
    way_links: Any,
    take_at: Any,
    takes: Any,
    delay: Any,
    behind_at: Any,
    behind: Any,
    links: int,
    starts: Any,
) -> int:
    """Let every job start as early as the order allows; return when the last arrives.

    In `order` every job comes after those that it waits for.
    """
    free = [0] * links
    ready = [0] * len(delay)
    ends = 0
    for i in order:
        w = way[i]
        shift = take_at[i] - way_at[w]
        start = ready[i]
        for at in range(way_at[w], way_at[w + 1]):
            start = max(start, free[way_links[at]])
        for at in range(way_at[w], way_at[w + 1]):
            free[way_links[at]] = start + takes[at + shift]
        starts[i] = start
        arrives = start + delay[i]
        ends = max(ends, arrives)
        for at in range(behind_at[i], behind_at[i + 1]):
            d = behind[at]
            ready[d] = max(ready[d], arrives)
    return ends
