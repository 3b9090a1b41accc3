"""`sharing.py` once more, for Numba: the same rates to the last bit, far faster.

A test compares the two. Flows and links are rows of arrays:

F flows, K links; R the links of all routes, one route behind the other; P a part for
each link: its flows in the order of coming, and below them those of these that are
affected; W lists that one settling works with; S single numbers.

V levels of links, T ends of flows, B and U the same memory read as whole numbers: what
is not negative has the order of its bits, and the least of whole numbers is found many
at a time. Behind them lies the least of every `_BLOCK`, -1 where it must be found anew,
and one word more.

To fill again, with more flows, is cheap: only links with new flows are read anew. What
a link knows of its other flows (`top`, `least`) says whether one of them is wronged.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numba import from_dtype, types

from stretto.fabric.jit.atomics import compiled, direct

__all__ = ["FLOW", "LINK", "admit", "direct", "settle"]


def _row(floats: str, fields: str) -> Any:
    kinds = dict.fromkeys(floats.split(), "f8")
    return np.dtype([(name, kinds.get(name, "i8")) for name in fields.split()])


# What is used together lies together: half a row is what a processor takes at once.
FLOW = _row(
    "weight new limit most rate share left since",
    "weight new new_neck stopped first hops limit most"
    " rate share place neck left since age spare",
)
LINK = _row(
    "room count highest own free weights top least capacity",
    "room count highest own slot start mine many"
    " free weights top least capacity places touched mark",
)
FRESH, GONE, TOUCH, AFFECTED, ORDER, NEWER, LINKS, STOPS, READ, DUE = range(10)
NUM_FRESH, NUM_ADMITTED, NUM_GONE, NUM_TOUCHED, NUM_DUE, EVENTS, USED = range(7)

_ITSELF, _NONE = -1, 1e-9
_SAME, _NEAR, _MOMENT = 1 + 1e-12, 1 + 1e-9, 1e-9
_FULL, _FREE = 3e-10, 3e-9
"""Shares of a capacity on either side of `_NEAR`, further than what rounding does."""
_BLOCK = 64
_INFINITY = 0x7FF0000000000000
_FLOATS, _WORDS = types.Array(types.float64, 1, "C"), types.Array(types.int64, 1, "C")
_TABLE = types.Array(types.int64, 2, "C")
_FLOWS, _LINKS = (types.Array(from_dtype(kind), 1, "C") for kind in (FLOW, LINK))
_ARRAYS = types.Tuple(
    (_FLOWS, _LINKS, _WORDS, _TABLE, _FLOATS, _WORDS, _FLOATS, _WORDS, _TABLE, _WORDS)
)


@compiled("int64(int64[::1], uint64, uint64)", lean=True)
def _least(bits: Any, start: Any, stop: Any) -> Any:
    """Return the least of some; without signs, so that it is many at a time."""
    least = _INFINITY
    for i in range(start, stop):
        least = min(least, bits[i])
    return least


@compiled("int64(int64[::1])", lean=True)
def _behind(bits: Any) -> Any:
    """Return where the least of the first block is."""
    return (len(bits) - 1) // (_BLOCK + 1) * _BLOCK


@compiled("float64(float64[::1], int64[::1], int64)", lean=True)
def _lowest(values: Any, bits: Any, many: int) -> Any:
    """Return the least of the first values, and know that of each block."""
    behind, blocks = _behind(bits), (many + _BLOCK - 1) // _BLOCK
    for block in range(blocks):
        if bits[behind + block] < 0:
            stop = min(many, (block + 1) * _BLOCK)
            bits[behind + block] = _least(bits, block * _BLOCK, stop)
    bits[-1] = _least(bits, behind, behind + blocks)
    return values[-1]


@compiled(types.boolean(_ARRAYS), lean=True)
def admit(x: Any) -> bool:
    """Put those that came on their links; return whether there was room for all.

    A link whose part is full gets one of twice the size, behind all parts.
    """
    F, K, R, P, V, B, T, U, W, S = x
    while S[NUM_ADMITTED] < S[NUM_FRESH]:
        flow, need = W[FRESH, S[NUM_ADMITTED]], 0
        first, hops = F[flow].first, F[flow].hops
        for at in range(first, first + hops):
            if K[R[at]].many + hops > K[R[at]].places:
                need += 2 * K[R[at]].places
        if S[USED] + need > len(P[0]):
            return False
        for at in range(first, first + hops):
            link = R[at]
            if K[link].many == K[link].places:
                for i in range(K[link].many):
                    P[0, S[USED] + i] = P[0, K[link].start + i]
                K[link].start, K[link].places = S[USED], 2 * K[link].places
                S[USED] += K[link].places
            P[0, K[link].start + K[link].many] = flow
            K[link].many += 1
        F[flow].rate, F[flow].neck, F[flow].place = 0.0, _ITSELF, -1
        S[NUM_ADMITTED] += 1
    return True


@compiled(types.void(types.int64, _ARRAYS), lean=True)
def _remove(flow: int, x: Any) -> None:
    """Take a flow off its links."""
    F, K, R, P, V, B, T, U, W, S = x
    for hop in range(F[flow].first, F[flow].first + F[flow].hops):
        link = R[hop]
        at, last = K[link].start, K[link].start + K[link].many - 1
        while P[0, at] != flow:
            at += 1
        for i in range(at, last):
            P[0, i] = P[0, i + 1]
        K[link].many -= 1
        if K[link].many and not K[link].touched:
            K[link].touched = 1
            W[TOUCH, S[NUM_TOUCHED]] = link
            S[NUM_TOUCHED] += 1
    T[flow] = math.inf
    U[_behind(U) + flow // _BLOCK] = -1


@compiled(types.float64(_ARRAYS), lean=True)
def _next(x: Any) -> float:
    """List the flows that end in the next moment; return when it begins."""
    F, K, R, P, V, B, T, U, W, S = x
    many = _behind(U)
    start, due = _lowest(T, U, many), 0
    until = start + _MOMENT
    if until < math.inf:
        for block in range(many // _BLOCK):
            if T[many + block] <= until:
                for flow in range(block * _BLOCK, (block + 1) * _BLOCK):
                    if T[flow] <= until:
                        W[DUE, due] = flow
                        due += 1
    S[NUM_DUE] = due
    return float(start)


@compiled(types.void(types.int64, types.float64, _ARRAYS), lean=True)
def _set(many: int, now: float, x: Any) -> None:
    """Give those that have stopped their rates, and their ends an age."""
    F, K, R, P, V, B, T, U, W, S = x
    behind = _behind(U)
    for i in range(many):
        flow = W[STOPS, i]
        rate, had = F[flow].new, F[flow].rate
        F[flow].neck, F[flow].place = F[flow].new_neck, -1
        if abs(rate - had) <= rate * 1e-12:
            continue
        left = max(0.0, F[flow].left - had * (now - F[flow].since))
        F[flow].left, F[flow].since, F[flow].rate = left, now, rate
        F[flow].share = rate / F[flow].weight
        T[flow] = now + left / rate if rate > 0 else math.inf
        U[behind + flow // _BLOCK] = -1
        S[EVENTS] += 1
        F[flow].age = S[EVENTS]


@compiled(types.boolean(types.int64, types.int64, _FLOWS), lean=True)
def _is_later(one: int, other: int, F: Any) -> Any:
    """Return whether one limit is higher; of equal ones the last came first."""
    a, b = F[one], F[other]
    return a.limit > b.limit or (a.limit == b.limit and a.place < b.place)


@compiled(types.int64(types.int64, types.int64, types.int64, _ARRAYS), lean=True)
def _sort(known: int, many: int, size: int, x: Any) -> int:
    """Put those that have a limit of their own among the others in W[ORDER].

    The least limit is first, and of equal ones the last of `affected`. A heap sort
    keeps this quick. Return how many there are.
    """
    F, K, R, P, V, B, T, U, W, S = x
    heap, more = W[NEWER], 0
    for i in range(known, many):
        flow = W[AFFECTED, i]
        if F[flow].limit == math.inf:
            continue
        child = more
        more += 1
        while child:
            parent = (child - 1) >> 1
            if _is_later(heap[parent], flow, F):
                break
            heap[child] = heap[parent]
            child = parent
        heap[child] = flow
    had, size = size - 1, size + more
    for last in range(more - 1, -1, -1):  # the latest is taken, and has its place
        latest, flow = heap[0], heap[last]
        while had >= 0 and _is_later(W[ORDER, had], latest, F):
            W[ORDER, had + last + 1] = W[ORDER, had]
            had -= 1
        W[ORDER, had + last + 1] = latest
        hole = 0
        while 2 * hole + 1 < last:
            child = 2 * hole + 1
            if child + 1 < last:
                child += _is_later(heap[child + 1], heap[child], F)
            if _is_later(flow, heap[child], F):
                break
            heap[hole] = heap[child]
            hole = child
        heap[hole] = flow
    return int(size)


@compiled(types.void(types.int64, _ARRAYS), lean=True)
def _read(stale: int, x: Any) -> None:
    """Find what others leave of links, how they fare, and whose are affected."""
    F, K, R, P, V, B, T, U, W, S = x
    for i in range(stale):
        link = W[READ, i]
        taken, top, least, mine, start = 0.0, -1.0, math.inf, 0, K[link].start
        for at in range(start, start + K[link].many):
            flow = P[0, at]
            rate, share, is_mine = F[flow].rate, F[flow].share, F[flow].place >= 0
            P[1, start + mine] = flow
            mine += is_mine
            taken += 0.0 if is_mine else rate
            share = -1.0 if is_mine else share
            top = max(top, share)
            share = share if F[flow].neck == link and not is_mine else math.inf
            least = min(least, share)
        K[link].free = max(0.0, K[link].capacity - taken)
        K[link].top, K[link].least = top, least
        K[link].mine, K[link].mark = mine, 0


@compiled(types.int64(types.int64, types.int64, types.int64, _ARRAYS), lean=True)
def _open(known: int, many: int, links: int, x: Any) -> int:
    """Find the room on the links of the affected, some of whom were `known` before.

    Return how many links these are.
    """
    F, K, R, P, V, B, T, U, W, S = x
    stale = 0
    for i in range(known, many):
        flow = W[AFFECTED, i]
        first = F[flow].first
        for at in range(first, first + F[flow].hops):
            link = R[at]
            if K[link].slot < 0:
                K[link].slot, W[LINKS, links], K[link].weights = links, link, 0.0
                links += 1
            K[link].weights += F[flow].weight
            if not K[link].mark:
                K[link].mark, W[READ, stale] = 1, link
                stale += 1
    _read(stale, x)
    for i in range(many):
        F[W[AFFECTED, i]].stopped = 0
    for i in range(links):
        link = W[LINKS, i]
        room, count = K[link].free, K[link].weights
        K[link].room, K[link].count, V[i] = room, count, room / count
        K[link].highest, K[link].own = 0.0, -1.0
    behind = _behind(B)
    for block in range((links + _BLOCK - 1) // _BLOCK):
        B[behind + block] = -1
    return links


@compiled(types.int64(types.int64, types.int64, _ARRAYS), lean=True)
def _stop_rest(many: int, stops: int, x: Any) -> int:
    """List behind the stopped all others: nothing holds them back."""
    F, K, R, P, V, B, T, U, W, S = x
    for i in range(many - 1, -1, -1):
        flow = W[AFFECTED, i]
        if not F[flow].stopped:
            W[STOPS, stops], F[flow].new_neck = flow, _ITSELF
            stops += 1
    return int(stops)


@compiled(types.void(types.int64, types.int64, types.int64, _ARRAYS), lean=True)
def _fill(many: int, links: int, limited: int, x: Any) -> None:
    """Raise the rates of the affected together; whoever meets a full link stops."""
    F, K, R, P, V, B, T, U, W, S = x
    at, stops = 0, 0
    behind, blocks = _behind(B), (links + _BLOCK - 1) // _BLOCK
    while stops < many:
        while at < limited and F[W[ORDER, at]].stopped:
            at += 1
        level, first = _lowest(V, B, links), stops
        if at < limited and F[W[ORDER, at]].limit <= level:
            flow = W[ORDER, at]
            level, W[STOPS, stops], F[flow].new_neck = F[flow].limit, flow, _ITSELF
            stops += 1
        elif level < math.inf:
            most = level * _SAME
            for block in range(blocks):
                if V[behind + block] > most:
                    continue
                for slot in range(block * _BLOCK, min(links, (block + 1) * _BLOCK)):
                    if V[slot] > most:
                        continue
                    link = W[LINKS, slot]
                    for i in range(K[link].start, K[link].start + K[link].mine):
                        flow = P[1, i]
                        if F[flow].stopped < 2:
                            if not F[flow].stopped:
                                F[flow].stopped, W[STOPS, stops] = 1, flow
                                stops += 1
                            F[flow].new_neck = link
        else:
            stops = _stop_rest(many, stops, x)
        for i in range(first, stops):  # take what each has from its links
            flow = W[STOPS, i]
            weight, neck = F[flow].weight, F[flow].new_neck
            rate = level * weight
            share = rate / weight
            F[flow].new, F[flow].stopped = rate, 2
            for hop in range(F[flow].first, F[flow].first + F[flow].hops):
                link = R[hop]
                room, count = max(0.0, K[link].room - rate), K[link].count - weight
                K[link].room, K[link].count = room, count
                V[K[link].slot] = math.inf if count < _NONE else room / count
                B[behind + K[link].slot // _BLOCK] = -1
                if share > K[link].highest:
                    K[link].highest = share
            if neck >= 0:
                K[neck].own = max(K[neck].own, share)


@compiled(types.boolean(types.int64, _ARRAYS), lean=True)
def _is_full(link: int, x: Any) -> bool:
    """Return whether a link is full, by the sum of all rates on it."""
    F, K, R, P, V, B, T, U, W, S = x
    total: float = 0.0
    for at in range(K[link].start, K[link].start + K[link].many):
        flow = P[0, at]
        total += F[flow].new if F[flow].place >= 0 else F[flow].rate
    return bool(total * _NEAR >= K[link].capacity)


@compiled(types.int64(types.int64, types.int64, _ARRAYS), lean=True)
def _judge(many: int, links: int, x: Any) -> int:
    """Add whoever is wronged on some link to the affected; return how many they are.

    What a link knows says whether there is one, who has too much (1), or less than is
    there (2); only such are read, in the order in which flows have stopped.
    """
    F, K, R, P, V, B, T, U, W, S = x
    unfair, stopped = 0, 0
    for i in range(links):
        link = W[LINKS, i]
        own, wrongs = K[link].own, 0
        if K[link].least < math.inf:
            room, much = K[link].room, K[link].capacity
            if room > much * _FREE or (room >= much * _FULL and not _is_full(link, x)):
                wrongs = 2
            elif K[link].least * _NEAR < K[link].highest:
                wrongs = 1
        if not wrongs and own >= 0 and K[link].top > own * _NEAR:
            wrongs = 1
        K[link].mark = wrongs
        unfair += wrongs > 0
    while unfair:
        flow = W[STOPS, stopped]
        stopped += 1
        for hop in range(F[flow].first, F[flow].first + F[flow].hops):
            link = R[hop]
            if not K[link].mark:
                continue
            most = math.inf if K[link].mark == 2 else K[link].highest
            level = K[link].own if K[link].own >= 0 else math.inf
            K[link].mark = 0
            unfair -= 1
            for at in range(K[link].start, K[link].start + K[link].many):
                other = P[0, at]
                share = F[other].share
                if F[other].place < 0 and (
                    (F[other].neck == link and share * _NEAR < most)
                    or share > level * _NEAR
                ):
                    W[AFFECTED, many], F[other].place = other, many
                    many += 1
    return int(many)


@compiled(types.int64(types.float64, _ARRAYS), lean=True)
def _begin(now: float, x: Any) -> int:
    """List who came and whose neck was touched; return how many.

    Who is alone on its links has its rate at once.
    """
    F, K, R, P, V, B, T, U, W, S = x
    many = 0
    for i in range(S[NUM_FRESH]):
        flow = W[FRESH, i]
        first = F[flow].first
        alone, neck = True, R[first]
        for at in range(first, first + F[flow].hops):
            alone = alone and K[R[at]].many == 1
            if K[R[at]].capacity < K[neck].capacity:
                neck = R[at]
        if alone:
            rate = min(F[flow].most, K[neck].capacity)
            F[flow].new_neck = neck if rate < F[flow].most else _ITSELF
            F[flow].new, W[STOPS, 0] = rate, flow
            _set(1, now, x)
        else:
            W[AFFECTED, many], F[flow].place = flow, many
            many += 1
    for i in range(S[NUM_TOUCHED]):
        link = W[TOUCH, i]
        K[link].touched = 0
        for at in range(K[link].start, K[link].start + K[link].many):
            flow = P[0, at]
            if F[flow].neck == link and F[flow].place < 0:
                W[AFFECTED, many], F[flow].place = flow, many
                many += 1
    S[NUM_FRESH] = S[NUM_ADMITTED] = S[NUM_TOUCHED] = 0
    return many


@compiled(types.float64(types.float64, _ARRAYS), lean=True)
def settle(now: float, x: Any) -> float:
    """Take off who has gone, give all others their fair rates, list who ends next.

    Return when that is, or -1 when there was no room for those that came: nothing is
    settled then.
    """
    F, K, R, P, V, B, T, U, W, S = x
    for i in range(S[NUM_GONE]):
        _remove(W[GONE, i], x)
    S[NUM_GONE] = 0
    if not admit(x):
        return -1.0
    many, known, links, limited = _begin(now, x), 0, 0, 0
    while known < many:
        links = _open(known, many, links, x)
        limited = _sort(known, many, limited, x)
        _fill(many, links, limited, x)
        known, many = many, _judge(many, links, x)
    _set(many, now, x)
    for i in range(links):
        K[W[LINKS, i]].slot = -1
    return float(_next(x))
