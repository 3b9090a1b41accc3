"""One plan from an order of jobs: the loop in which synthesis spends its time.

It runs everywhere, on lists; where Numba is installed, and enough plans are wanted to
pay for it, `compiled` makes the same of arrays. So heaps are written out, and flat.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

__all__ = ["PARTS", "compacted", "dispatched", "tailed"]


def whole(count: int, value: int) -> Any:
    """Return so many whole numbers; compiled, an array."""
    return [value] * count


def numbers(count: int) -> Any:
    """Return room for so many numbers; compiled, an array."""
    return [0.0] * count


def _push(heap: Any, at: int, size: int, value: int) -> None:
    """Add a value to a heap that lies in an array from `at` on."""
    child = size
    while child:
        parent = (child - 1) >> 1
        if heap[at + parent] <= value:
            break
        heap[at + child] = heap[at + parent]
        child = parent
    heap[at + child] = value


def _add(events: Any, many: int, event: int) -> int:
    """Add an event; return how many there are."""
    _push(events, 0, many, event)
    return many + 1


def _pop(heap: Any, at: int, size: int) -> int:
    """Remove and return the least value of a heap of so many."""
    least = heap[at]
    value = heap[at + size - 1]
    hole, last = 0, size - 1
    while 2 * hole + 1 < last:
        child = 2 * hole + 1
        if child + 1 < last and heap[at + child + 1] < heap[at + child]:
            child += 1
        if heap[at + child] >= value:
            break
        heap[at + hole] = heap[at + child]
        hole = child
    heap[at + hole] = value
    return int(least)


def dispatched(
    urgency: Any, ranks: Any, order: Any, weight: float, patience: Any, way: Any,
    way_at: Any, way_links: Any, take_at: Any, takes: Any, delay: Any, waits: Any,
    behind_at: Any, behind: Any, left: Any, starts: Any,
) -> int:  # fmt: skip
    """Write when every job starts; return when the last arrives.

    The largest of `weight` x what its fullest link has left + its urgency goes first,
    also when its links are free within its way's `patience` x its own time. `ranks` and
    `order` are the order of urgency, there and back; lists of x are from at[x] on.
    """
    jobs, ways, links = len(delay), len(way_at) - 1, len(left)
    span = jobs + links
    free, booked, parked = whole(links, 0), whole(links, -1), whole(links, -1)
    ready, queue, queued = whole(jobs, 0), whole(jobs, 0), whole(ways, 0)
    queue_at, after, idle = _queues(way, ways), whole(ways, -1), whole(ways, 1)
    asked, keys, events = whole(ways, 0), numbers(ways), whole(_room(way, way_at), 0)
    many = ends = 0
    for i in range(jobs):
        if waits[i] == 0:
            events[many] = i
            many += 1
    while many:
        now = events[0] // span
        many, count = _gather(
            now, span, jobs, events, many, way, ranks, queue, queue_at, queued,
            free, booked, parked, after, idle, asked,
        )  # fmt: skip
        for k in range(count):
            w = asked[k]
            fullest = _fullest(w, way_at, way_links, left)
            key = -urgency[order[queue[queue_at[w]]]] - weight * fullest
            _insert(keys, asked, k, key, w)
        for k in range(count):
            w = asked[k]
            busy, begin = _busiest(w, now, way_at, way_links, free)
            if begin - now > patience[w] * delay[order[queue[queue_at[w]]]]:
                after[w] = parked[busy]
                parked[busy] = w
                continue
            i = order[_pop(queue, queue_at[w], queued[w])]
            queued[w] -= 1
            starts[i] = begin
            many, last = _occupy(
                i, w, begin, span, jobs, way_at, way_links, take_at, takes, free,
                left, events, many,
            )  # fmt: skip
            if begin > now:
                booked[busy] = begin
                many = _add(events, many, begin * span + jobs + busy)
            ends = max(ends, begin + delay[i])
            many = _arrive(
                i, begin + delay[i], span, behind_at, behind, waits, ready, events, many
            )
            if queued[w]:
                after[w] = parked[last]
                parked[last] = w
            else:
                idle[w] = 1
    return ends


def _busiest(
    w: int, now: int, way_at: Any, way_links: Any, free: Any
) -> tuple[int, int]:
    """Return the link of a way that is free last, or -1, and when they all are."""
    busy, begin = -1, now
    for at in range(way_at[w], way_at[w + 1]):
        if free[way_links[at]] > begin:
            busy = way_links[at]
            begin = free[busy]
    return busy, begin


def _room(way: Any, way_at: Any) -> int:
    """Return how many events there may be: of jobs, their starts, and their links."""
    room = 2 * len(way)
    for w in way:
        room += way_at[w + 1] - way_at[w]
    return room


def _queues(way: Any, ways: int) -> Any:
    """Return where the queue of each way begins."""
    at = whole(ways + 1, 0)
    for w in way:
        at[w + 1] += 1
    for w in range(ways):
        at[w + 1] += at[w]
    return at


def _gather(
    now: int,
    span: int,
    jobs: int,
    events: Any,
    many: int,
    way: Any,
    ranks: Any,
    queue: Any,
    queue_at: Any,
    queued: Any,
    free: Any,
    booked: Any,
    parked: Any,
    after: Any,
    idle: Any,
    asked: Any,
) -> tuple[int, int]:
    """Collect the ways that something may start on now; return events, and ways."""
    count = 0
    while many and events[0] // span == now:
        event = _pop(events, 0, many) % span
        many -= 1
        if event < jobs:
            w = way[event]
            _push(queue, queue_at[w], queued[w], ranks[event])
            queued[w] += 1
            if idle[w]:
                idle[w] = 0
                asked[count] = w
                count += 1
        elif free[event - jobs] == now or booked[event - jobs] == now:
            w = parked[event - jobs]
            parked[event - jobs] = -1
            while w >= 0:
                asked[count] = w
                count += 1
                w = after[w]
    return many, count


def _fullest(w: int, way_at: Any, way_links: Any, left: Any) -> int:
    """Return what the fullest link of a way still has to carry."""
    fullest = 0
    for at in range(way_at[w], way_at[w + 1]):
        fullest = max(fullest, left[way_links[at]])
    return fullest


def _insert(keys: Any, asked: Any, here: int, key: float, w: int) -> None:
    """Put a way where its key belongs, among those before it."""
    while here and (
        keys[here - 1] > key or (keys[here - 1] == key and asked[here - 1] > w)
    ):
        keys[here], asked[here] = keys[here - 1], asked[here - 1]
        here -= 1
    keys[here], asked[here] = key, w


def _occupy(
    i: int,
    w: int,
    begin: int,
    span: int,
    jobs: int,
    way_at: Any,
    way_links: Any,
    take_at: Any,
    takes: Any,
    free: Any,
    left: Any,
    events: Any,
    many: int,
) -> tuple[int, int]:
    """Take the links of a job; return how many events there are, and the last link."""
    until, last = -1, -1
    shift = take_at[i] - way_at[w]
    for at in range(way_at[w], way_at[w + 1]):
        e, t = way_links[at], takes[at + shift]
        free[e] = begin + t
        left[e] -= t
        many = _add(events, many, (begin + t) * span + jobs + e)
        if t > until:
            until, last = t, e
    return many, last


def _arrive(
    i: int,
    arrives: int,
    span: int,
    behind_at: Any,
    behind: Any,
    waits: Any,
    ready: Any,
    events: Any,
    many: int,
) -> int:
    """Let what waits for a job know when it arrives; return how many events are."""
    for at in range(behind_at[i], behind_at[i + 1]):
        d = behind[at]
        waits[d] -= 1
        ready[d] = max(ready[d], arrives)
        if waits[d] == 0:
            many = _add(events, many, ready[d] * span + d)
    return many


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
    free, ready = whole(links, 0), whole(len(delay), 0)
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
            ready[behind[at]] = max(ready[behind[at]], arrives)
    return ends


def tailed(delay: Any, behind_at: Any, behind: Any, left: Any) -> Any:
    """Return the ticks from each job's start until all behind it have arrived.

    `left` says for how many jobs each waits, and is used up.
    """
    jobs = len(delay)
    queue, tail = whole(jobs, 0), whole(jobs, 0)
    many = 0
    for i in range(jobs):
        if left[i] == 0:
            queue[many] = i
            many += 1
    at = 0
    while at < many:
        for k in range(behind_at[queue[at]], behind_at[queue[at] + 1]):
            left[behind[k]] -= 1
            if left[behind[k]] == 0:
                queue[many] = behind[k]
                many += 1
        at += 1
    while at:
        at -= 1
        i = queue[at]
        for k in range(behind_at[i], behind_at[i + 1]):
            tail[i] = max(tail[i], tail[behind[k]])
        tail[i] += delay[i]
    return tail


PARTS: tuple[Callable[..., Any], ...] = (
    *(_push, _add, _pop, _room, _queues, _gather),
    *(_busiest, _fullest, _insert, _occupy, _arrive),
)
"""What the three call, each after what it calls itself."""
