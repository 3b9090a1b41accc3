"""How rates rise together, for Numba: the rooms of links, and who stops where.

`rows.py` says what the arrays are. To fill again, with more flows, is cheap: only links
with new flows are read anew. Loops without branches are quicker where nobody could say
which way they go: what is not meant is written over by the next.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numba import types

from stretto.fabric.jit.atomics import compiled
from stretto.topology.traffic.rows import (
    BLOCK,
    FLOWS,
    ITSELF,
    LINKS,
    MINES,
    NEWER,
    NUM_LIMITED,
    ONE,
    ONE_BLOCK,
    ORDER,
    OTHERS,
    READ,
    SHIFT,
    STOPS,
    TURNS,
    arrays,
)

__all__ = ["behind", "fill", "first_of", "lowest", "open_links", "sort_limits"]

_SAME, _NONE = 1 + 1e-12, 1e-9
_INFINITY = 0x7FF0000000000000


@compiled("int64(int64[::1])", lean=True)
def behind(bits: Any) -> Any:
    """Return where the least of the first block is."""
    return (len(bits) - 1) // (BLOCK + 1) * BLOCK


@compiled("float64(float64[::1], int64[::1], int64)", lean=True)
def lowest(values: Any, bits: Any, many: int) -> Any:
    """Return the least of the first values, and know that of each block."""
    low, after = _INFINITY, np.uint64(behind(bits))
    for block in range(np.uint64((many + BLOCK - 1) // BLOCK)):
        least = bits[after + block]
        if least < 0:
            least, first = _INFINITY, block * ONE_BLOCK
            for i in range(first, min(first + ONE_BLOCK, after)):  # whole, but unsaid:
                least = min(least, bits[i])  # it is many at a time, not unrolled
            bits[after + block] = least
        low = min(low, least)
    bits[-1] = low
    return values[-1]


@compiled("uint64(int64[::1], uint64, uint64, int64)", lean=True)
def first_of(bits: Any, start: Any, stop: Any, most: Any) -> Any:
    """Return where the first is that is not above, or `stop`."""
    found = stop
    for i in range(start, stop):
        found = min(found, i if bits[i] <= most else stop)
    return found


@compiled(types.boolean(types.uint32, types.uint32, MINES, FLOWS), lean=True)
def _is_later(one: int, other: int, Q: Any, F: Any) -> Any:
    """Return whether one limit is higher; of equal ones the last came first."""
    a, b = F[Q[one].flow].limit, F[Q[other].flow].limit
    return a > b or (a == b and one < other)


@compiled(types.int64(types.int64, types.int64, types.int64, types.int64), lean=True)
def sort_limits(known: int, many: int, size: int, x: int) -> int:
    """Put those that have a limit of their own among the others in W[ORDER].

    The least limit is first, and of equal ones the last of `affected`. A heap sort
    keeps this quick. Return how many there are.
    """
    F, H, K, Q, L, R, G, P, V, B, T, U, W, S = arrays(x)
    heap, more = W[NEWER], 0
    for place in range(known, many):
        if F[Q[place].flow].limit == math.inf:
            continue
        child = more
        more += 1
        while child:
            parent = (child - 1) >> 1
            if _is_later(heap[parent], place, Q, F):
                break
            heap[child] = heap[parent]
            child = parent
        heap[child] = place
    had, size = size - 1, size + more
    for last in range(more - 1, -1, -1):  # the latest is taken, and has its place
        latest, flow = heap[0], heap[last]
        while had >= 0 and _is_later(W[ORDER, had], latest, Q, F):
            W[ORDER, had + last + 1] = W[ORDER, had]
            had -= 1
        W[ORDER, had + last + 1] = latest
        hole = 0
        while 2 * hole + 1 < last:
            child = 2 * hole + 1
            if child + 1 < last:
                child += _is_later(heap[child + 1], heap[child], Q, F)
            if _is_later(flow, heap[child], Q, F):
                break
            heap[hole] = heap[child]
            hole = child
        heap[hole] = flow
    return int(size)


@compiled(types.int64(types.uint32, types.int64), lean=True)
def _part(link: int, x: int) -> int:
    """List who is affected on a link, in P[1], and who is not; return how many."""
    F, H, K, Q, L, R, G, P, V, B, T, U, W, S = arrays(x)
    start, others = np.uint64(K[link].start), np.uint64(0)
    mine = start
    for at in range(start, start + K[link].many):
        flow = P[0, at]
        place = H[flow].place
        P[1, mine] = place
        W[OTHERS, others] = flow
        mine += np.uint64(place >= 0)
        others += np.uint64(place < 0)
    K[link].mine = mine - start
    return int(others)


@compiled(types.void(types.uint32, types.int64, types.int64), lean=True)
def _read(link: int, others: int, x: int) -> None:
    """Find what others leave of a link, and how they fare: `_part` has listed them."""
    F, H, K, Q, L, R, G, P, V, B, T, U, W, S = arrays(x)
    taken, top, least = 0.0, -1.0, math.inf
    for at in range(np.uint64(others)):
        flow = W[OTHERS, at]
        share, neck = H[flow].share, H[flow].neck
        taken += H[flow].rate
        top = max(top, share)
        share = share if neck == link else math.inf
        least = min(least, share)
    slot = np.uint32(K[link].slot)
    L[slot].free = max(0.0, K[link].capacity - taken)
    L[slot].top, L[slot].least = top, least


@compiled(types.int64(types.int64, types.int64, types.int64, types.int64), lean=True)
def open_links(known: int, many: int, links: int, x: int) -> int:
    """Find the room on the links of the affected, some of whom were `known` before.

    Return how many links these are.
    """
    F, H, K, Q, L, R, G, P, V, B, T, U, W, S = arrays(x)
    stale, limited = 0, 0
    for place in range(known, many):
        flow = Q[place].flow
        first, weight = F[flow].first, H[flow].weight
        Q[place].hops, Q[place].weight = F[flow].hops, weight
        limited += F[flow].limit < math.inf
        for hop in range(np.uint64(F[flow].hops)):
            link = R[first + hop]
            slot = K[link].slot
            is_new = slot < 0
            slot = np.uint32(links if is_new else slot)
            W[LINKS, slot], K[link].slot = link, slot
            links += is_new
            G[place, hop] = slot
            L[slot].weights += weight
            W[READ, stale] = link
            stale += K[link].mark == 0
            K[link].mark = 1
    S[NUM_LIMITED] = limited
    for i in range(stale):
        link = W[READ, i]
        K[link].mark = 0
        _read(link, _part(link, x), x)
    for place in range(many):
        Q[place].stopped = 0
    for slot in range(links):
        room, count = L[slot].free, L[slot].weights
        L[slot].room, L[slot].count, V[slot] = room, count, room / count
        L[slot].highest, L[slot].own = -1.0, -1.0
    after = behind(B)
    for block in range((links + BLOCK - 1) // BLOCK):
        B[after + block] = -1
    return links


@compiled(types.int64(types.int64, types.int64, types.int64), lean=True)
def _stop_rest(many: int, stops: int, x: int) -> int:
    """List behind the stopped all others: nothing holds them back."""
    F, H, K, Q, L, R, G, P, V, B, T, U, W, S = arrays(x)
    for place in range(many - 1, -1, -1):
        if not Q[place].stopped:
            W[STOPS, stops], Q[place].neck = place, ITSELF
            stops += 1
    return int(stops)


@compiled(types.int64(types.int64, types.int64, types.int64), lean=True)
def _stop_on(slot: int, stops: int, x: int) -> int:
    """List behind the stopped who meets a full link."""
    F, H, K, Q, L, R, G, P, V, B, T, U, W, S = arrays(x)
    link = W[LINKS, slot]
    start, end = np.uint64(K[link].start), np.uint64(stops)
    for i in range(start, start + K[link].mine):
        place = P[1, i]
        stopped, neck = Q[place].stopped, Q[place].neck
        W[STOPS, end] = place  # written over, if it has stopped before
        end += np.uint64(stopped == 0)
        Q[place].stopped = max(stopped, ONE)
        Q[place].neck = link if stopped < 2 else neck
    return int(end)


@compiled(types.void(types.int64, types.int64, types.int64, types.int64), lean=True)
def fill(many: int, links: int, limited: int, x: int) -> None:
    """Raise the rates of the affected together; whoever meets a full link stops."""
    F, H, K, Q, L, R, G, P, V, B, T, U, W, S = arrays(x)
    at, stops, turns = 0, 0, np.uint64(0)
    after, blocks = np.uint64(behind(B)), np.uint64((links + BLOCK - 1) // BLOCK)
    while stops < many:
        while at < limited and Q[W[ORDER, at]].stopped:
            at += 1
        level, first = lowest(V, B, links), stops
        if at < limited and F[Q[W[ORDER, at]].flow].limit <= level:
            place = W[ORDER, at]
            level, W[STOPS, stops] = F[Q[place].flow].limit, place
            Q[place].neck = ITSELF
            stops += 1
        elif level < math.inf:
            most = level * _SAME
            V[-1] = most  # to have its bits
            bits = B[-1]
            for block in range(blocks):
                if B[after + block] <= bits:
                    start = block * ONE_BLOCK
                    stop = min(start + ONE_BLOCK, after)
                    slot = first_of(B, start, stop, bits)
                    while slot < stop:
                        stops = _stop_on(slot, stops, x)
                        slot = first_of(B, slot + ONE, stop, bits)
        else:
            stops = _stop_rest(many, stops, x)
        for i in range(first, stops):  # take what each has from its links
            place = W[STOPS, i]
            weight, neck = Q[place].weight, Q[place].neck
            rate = level * weight
            share = level if weight == 1.0 else rate / weight
            Q[place].new, Q[place].stopped = rate, 2
            for hop in range(np.uint64(Q[place].hops)):
                slot = G[place, hop]
                W[TURNS, turns] = slot
                highest = L[slot].highest
                turns += np.uint64(highest < 0.0)
                room, count = max(0.0, L[slot].room - rate), L[slot].count - weight
                L[slot].room, L[slot].count = room, count
                L[slot].highest = max(highest, share)
                room = math.inf if count < _NONE else room  # no branch
                V[slot] = room / max(count, _NONE)
                B[after + (slot >> SHIFT)] = -1
            if neck >= 0:
                slot = np.uint32(K[np.uint32(neck)].slot)
                L[slot].own = max(L[slot].own, share)
