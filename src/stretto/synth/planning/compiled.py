"""The loop of `dispatch` once more, for Numba to compile: heaps and lists are arrays.

It gives the very plans of the other, which a test compares; only it is about forty
times as fast. So it may come in at any moment of a search.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from types import FunctionType
from typing import Any

import numpy as np

__all__ = ["compiled"]


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


def _dispatched(
    urgency: Any, ranks: Any, order: Any, weight: float, patience: float, way: Any,
    way_at: Any, way_links: Any, take_at: Any, takes: Any, delay: Any, waits: Any,
    behind_at: Any, behind: Any, left: Any, starts: Any,
) -> int:  # fmt: skip
    """Do what `dispatch.dispatched` does."""
    jobs, ways, links = len(delay), len(way_at) - 1, len(left)
    span = jobs + links
    free, parked = np.zeros(links, np.int64), np.full(links, -1, np.int64)
    ready, queue = np.zeros(jobs, np.int64), np.empty(jobs, np.int64)
    queued, queue_at = np.zeros(ways, np.int64), _queues(way, ways)
    after, idle = np.full(ways, -1, np.int64), np.ones(ways, np.bool_)
    asked, keys = np.empty(ways, np.int64), np.empty(ways, np.float64)
    events = np.empty(_room(way, way_at), np.int64)
    many = ends = 0
    for i in range(jobs):
        if waits[i] == 0:
            events[many] = i
            many += 1
    while many:
        now = events[0] // span
        many, count = _gather(
            now, span, jobs, events, many, way, ranks, queue, queue_at, queued,
            free, parked, after, idle, asked,
        )  # fmt: skip
        for k in range(count):
            w = asked[k]
            fullest = _fullest(w, way_at, way_links, left)
            key = -urgency[order[queue[queue_at[w]]]] - weight * fullest
            _insert(keys, asked, k, key, w)
        for k in range(count):
            w = asked[k]
            busy, begin = -1, now
            for at in range(way_at[w], way_at[w + 1]):
                if free[way_links[at]] > begin:
                    busy = way_links[at]
                    begin = free[busy]
            if begin - now > patience * delay[order[queue[queue_at[w]]]]:
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
            arrives = begin + delay[i]
            ends = max(ends, arrives)
            many = _arrive(
                i, arrives, span, behind_at, behind, waits, ready, events, many
            )
            if queued[w]:
                after[w] = parked[last]
                parked[last] = w
            else:
                idle[w] = True
    return ends


def _room(way: Any, way_at: Any) -> int:
    """Return how many events there may be: the jobs, and the links that each takes."""
    room = len(way)
    for w in way:
        room += way_at[w + 1] - way_at[w]
    return room


def _queues(way: Any, ways: int) -> Any:
    """Return where the queue of each way begins."""
    at = np.zeros(ways + 1, np.int64)
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
                idle[w] = False
                asked[count] = w
                count += 1
        elif free[event - jobs] == now:
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
        _push(events, 0, many, (begin + t) * span + jobs + e)
        many += 1
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
            _push(events, 0, many, ready[d] * span + d)
            many += 1
    return many


def _compacted(
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
    """Do what `dispatch.compacted` does."""
    free = np.zeros(links, np.int64)
    ready = np.zeros(len(delay), np.int64)
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


_made: list[tuple[Callable[..., int], Callable[..., int]]] = []


def compiled() -> tuple[Callable[..., int], Callable[..., int]] | None:
    """Return both functions compiled, made once; None where Numba is missing."""
    if not _made:
        try:
            from numba import njit
        except ImportError:
            return None
        try:
            njit(cache=True)(_push)
            njit = partial(njit, cache=True)  # kept for the next process
        except RuntimeError:  # nowhere to keep it
            pass
        space: dict[str, Any] = {"np": np, "__name__": __name__}
        for part in (
            _push,
            _pop,
            _room,
            _queues,
            _gather,
            _fullest,
            _insert,
            _occupy,
            _arrive,
        ):
            space[part.__name__] = _linked(part, space, njit)
        _made.append((_linked(_dispatched, space, njit), njit(_compacted)))
    return _made[0]


def _linked(function: Any, space: dict[str, Any], njit: Any) -> Callable[..., int]:
    """Return a function compiled that calls others that are compiled."""
    copy = FunctionType(function.__code__, space, function.__name__)
    made: Callable[..., int] = njit(copy)
    return made
