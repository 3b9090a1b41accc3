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
    jobs, ways, links = len(delay), len(way_at) - 1, len(left)
    span = jobs + links
    free = [0] * links
    ready = [0] * jobs
    queues = [[0][:0] for _ in range(ways)]
    parked = [-1] * links  # the first way that waits for a link; then `after`
    after = [-1] * ways
    idle = [True] * ways
    # one number an event: a job that may start, or a link that may be free
    events = [i for i in range(jobs) if waits[i] == 0]
    asked = [(0.0, 0)][:0]
    ends = 0
    while events:
        now = events[0] // span
        asked.clear()
        while events and events[0] // span == now:
            event = heapq.heappop(events) % span
            if event < jobs:
                w = way[event]
                heapq.heappush(queues[w], ranks[event])
                if idle[w]:
                    idle[w] = False
                    asked.append((0.0, w))
            elif free[event - jobs] == now:
                w = parked[event - jobs]
                parked[event - jobs] = -1
                while w >= 0:
                    asked.append((0.0, w))
                    w = after[w]
        if len(asked) > 1:
            for k in range(len(asked)):
                w = asked[k][1]
                fullest = 0
                for at in range(way_at[w], way_at[w + 1]):
                    if left[way_links[at]] > fullest:
                        fullest = left[way_links[at]]
                first = order[queues[w][0]]
                asked[k] = (-urgency[first] - weight * fullest, w)
            asked.sort()
        for k in range(len(asked)):
            w = asked[k][1]
            busy, begin = -1, now
            for at in range(way_at[w], way_at[w + 1]):
                if free[way_links[at]] > begin:
                    busy = way_links[at]
                    begin = free[busy]
            first = order[queues[w][0]]
            if begin - now > patience * delay[first]:
                after[w] = parked[busy]
                parked[busy] = w
                continue
            i = order[heapq.heappop(queues[w])]
            starts[i] = begin
            until, last = -1, -1
            shift = take_at[i] - way_at[w]
            for at in range(way_at[w], way_at[w + 1]):
                e, t = way_links[at], takes[at + shift]
                free[e] = begin + t
                left[e] -= t
                heapq.heappush(events, (begin + t) * span + jobs + e)
                if t > until:
                    until, last = t, e
            arrives = begin + delay[i]
            ends = max(ends, arrives)
            for at in range(behind_at[i], behind_at[i + 1]):
                d = behind[at]
                waits[d] -= 1
                ready[d] = max(ready[d], arrives)
                if waits[d] == 0:
                    heapq.heappush(events, ready[d] * span + d)
            if len(queues[w]):
                after[w] = parked[last]
                parked[last] = w
            else:
                idle[w] = True
    return ends


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
