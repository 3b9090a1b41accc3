"""The loop of `dispatch` once more, for Numba to compile: heaps and lists are arrays.

It gives the very plans of the other, which a test compares; only it is about forty
times as fast. So it may come in at any moment of a search.
"""

from __future__ import annotations

from collections.abc import Callable
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
    """Do what `dispatch.dispatched` does."""
    jobs, ways, links = len(delay), len(way_at) - 1, len(left)
    span = jobs + links
    free = np.zeros(links, np.int64)
    ready = np.zeros(jobs, np.int64)
    queue = np.empty(jobs, np.int64)
    queue_at = np.zeros(ways + 1, np.int64)
    for i in range(jobs):
        queue_at[way[i] + 1] += 1
    for w in range(ways):
        queue_at[w + 1] += queue_at[w]
    queued = np.zeros(ways, np.int64)
    parked = np.full(links, -1, np.int64)
    after = np.full(ways, -1, np.int64)
    idle = np.ones(ways, np.bool_)
    room = jobs
    for i in range(jobs):
        room += way_at[way[i] + 1] - way_at[way[i]]
    events = np.empty(room, np.int64)
    many = 0
    for i in range(jobs):
        if waits[i] == 0:
            events[many] = i
            many += 1
    asked = np.empty(ways, np.int64)
    keys = np.empty(ways, np.float64)
    ends = 0
    while many:
        now = events[0] // span
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
        for k in range(count):
            w = asked[k]
            fullest = 0
            for at in range(way_at[w], way_at[w + 1]):
                fullest = max(fullest, left[way_links[at]])
            key = -urgency[order[queue[queue_at[w]]]] - weight * fullest
            here = k
            while here and (
                keys[here - 1] > key or (keys[here - 1] == key and asked[here - 1] > w)
            ):
                keys[here], asked[here] = keys[here - 1], asked[here - 1]
                here -= 1
            keys[here], asked[here] = key, w
        for k in range(count):
            w = asked[k]
            busy, begin = -1, now
            for at in range(way_at[w], way_at[w + 1]):
                if free[way_links[at]] > begin:
                    busy = way_links[at]
                    begin = free[busy]
            first = order[queue[queue_at[w]]]
            if begin - now > patience * delay[first]:
                after[w] = parked[busy]
                parked[busy] = w
                continue
            i = order[_pop(queue, queue_at[w], queued[w])]
            queued[w] -= 1
            starts[i] = begin
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
            arrives = begin + delay[i]
            ends = max(ends, arrives)
            for at in range(behind_at[i], behind_at[i + 1]):
                d = behind[at]
                waits[d] -= 1
                ready[d] = max(ready[d], arrives)
                if waits[d] == 0:
                    _push(events, 0, many, ready[d] * span + d)
                    many += 1
            if queued[w]:
                after[w] = parked[last]
                parked[last] = w
            else:
                idle[w] = True
    return ends


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
        space = {
            "_push": njit(_push),
            "_pop": njit(_pop),
            "np": np,
            "__name__": __name__,
        }
        _made.append((_linked(_dispatched, space, njit), njit(_compacted)))
    return _made[0]


def _linked(function: Any, space: dict[str, Any], njit: Any) -> Callable[..., int]:
    """Return a function compiled that calls others that are compiled."""
    copy = FunctionType(function.__code__, space, function.__name__)
    made: Callable[..., int] = njit(copy)
    return made
