"""`sharing.py` once more, for Numba: the same rates to the last bit, far faster.

A test compares the two. `rows.py` says what the arrays are, `filling.py` fills. What a
link knows of its other flows (`top`, `least`) says whether one of them is wronged.
"""

from __future__ import annotations

import math

import numpy as np
from numba import types

from stretto.fabric.jit.atomics import compiled, direct
from stretto.topology.traffic.filling import (
    behind,
    fill,
    first_of,
    lowest,
    open_links,
    sort_limits,
)
from stretto.topology.traffic.rows import (
    BLOCK,
    DUE,
    EVENTS,
    FLOW,
    FRESH,
    GONE,
    ITSELF,
    LINK,
    LINKS,
    MINE,
    NEAR,
    NUM_ADMITTED,
    NUM_DUE,
    NUM_FRESH,
    NUM_GONE,
    NUM_LIMITED,
    NUM_TOUCHED,
    ONE,
    ROOM,
    SHARE,
    SHIFT,
    STOPS,
    TOUCH,
    TURNS,
    USED,
    arrays,
    keep,
)

__all__ = ["FLOW", "LINK", "MINE", "ROOM", "SHARE", "admit", "direct", "keep", "settle"]

_MOMENT = 1e-9
_FULL, _FREE = 3e-10, 3e-9
"""Shares of a capacity on either side of `NEAR`, further than what rounding does."""


@compiled(types.boolean(types.int64), lean=True)
def admit(x: int) -> bool:
    """Put those that came on their links; return whether there was room for all.

    A link whose part is full gets one of twice the size, behind all parts.
    """
    F, H, K, Q, L, R, G, P, V, B, T, U, W, S = arrays(x)
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
        H[flow].rate, H[flow].neck, H[flow].place = 0.0, ITSELF, -1
        H[flow].weight = F[flow].weight
        S[NUM_ADMITTED] += 1
    return True


@compiled(types.void(types.uint32, types.int64), lean=True)
def _remove(flow: int, x: int) -> None:
    """Take a flow off its links."""
    F, H, K, Q, L, R, G, P, V, B, T, U, W, S = arrays(x)
    for hop in range(F[flow].first, F[flow].first + F[flow].hops):
        link = R[hop]
        at, last = np.int64(K[link].start), K[link].start + K[link].many - 1
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
    U[behind(U) + flow // BLOCK] = -1


@compiled(types.float64(types.int64), lean=True)
def _next(x: int) -> float:
    """List the flows that end in the next moment; return when it begins."""
    F, H, K, Q, L, R, G, P, V, B, T, U, W, S = arrays(x)
    many = behind(U)
    start, due = lowest(T, U, many), 0
    until = start + _MOMENT
    T[-1] = until  # to have its bits
    bits = U[-1]
    if until < math.inf:
        for block in range(many // BLOCK):
            if T[many + block] <= until:
                stop = np.uint64((block + 1) * BLOCK)
                flow = first_of(U, block * BLOCK, stop, bits)
                while flow < stop:
                    W[DUE, due] = flow
                    due += 1
                    flow = first_of(U, flow + ONE, stop, bits)
    S[NUM_DUE] = due
    return float(start)


@compiled(types.void(types.int64, types.float64, types.int64), lean=True)
def _set(many: int, now: float, x: int) -> None:
    """Give those that have stopped their rates, and their ends an age."""
    F, H, K, Q, L, R, G, P, V, B, T, U, W, S = arrays(x)
    after = np.uint64(behind(U))
    for i in range(np.uint64(many)):
        place = W[STOPS, i]
        flow, rate = Q[place].flow, Q[place].new
        had = H[flow].rate
        H[flow].neck, H[flow].place = Q[place].neck, -1
        if abs(rate - had) <= rate * 1e-12:
            continue
        left = max(0.0, F[flow].left - had * (now - F[flow].since))
        F[flow].left, F[flow].since, H[flow].rate = left, now, rate
        H[flow].share = rate / H[flow].weight
        T[flow] = now + left / rate if rate > 0 else math.inf
        U[after + (flow >> SHIFT)] = -1
        S[EVENTS] += 1
        F[flow].age = S[EVENTS]


@compiled(types.boolean(types.uint32, types.int64, types.int64), lean=True)
def _is_full(link: int, many: int, x: int) -> bool:
    """Return whether a link is full, by the sum of all rates on it."""
    F, H, K, Q, L, R, G, P, V, B, T, U, W, S = arrays(x)
    total: float = 0.0
    for at in range(K[link].start, K[link].start + K[link].many):
        flow = P[0, at]
        place = H[flow].place
        total += Q[place].new if 0 <= place < many else H[flow].rate
    return bool(total * NEAR >= K[link].capacity)


@compiled(types.int64(types.int64, types.int64, types.int64), lean=True)
def _judge(many: int, links: int, x: int) -> int:
    """Add whoever is wronged on some link to the affected; return how many they are.

    What a link knows says whether there is one; only such are read, in the order in
    which flows have stopped on them.
    """
    F, H, K, Q, L, R, G, P, V, B, T, U, W, S = arrays(x)
    more = many
    for i in range(links):
        slot = W[TURNS, i]
        link = W[LINKS, slot]
        own, most, wrongs = L[slot].own, L[slot].highest, False
        if L[slot].least < math.inf:
            room, much = L[slot].room, K[link].capacity
            if room > much * _FREE or (
                room >= much * _FULL and not _is_full(link, many, x)
            ):
                wrongs, most = True, math.inf
            elif L[slot].least * NEAR < most:
                wrongs = True
        level = own if own >= 0 else math.inf
        if not wrongs and not L[slot].top > level * NEAR:
            continue
        for at in range(K[link].start, K[link].start + K[link].many):
            other = P[0, at]
            share, place = H[other].share, H[other].place
            is_behind = (H[other].neck == link) & (share * NEAR < most)
            is_new = (place < 0) & (is_behind | (share > level * NEAR))
            Q[more].flow, H[other].place = other, more if is_new else place
            more += is_new
    return int(more)


@compiled(types.int64(types.float64, types.int64), lean=True)
def _begin(now: float, x: int) -> int:
    """List who came and whose neck was touched; return how many.

    Who is alone on its links has its rate at once.
    """
    F, H, K, Q, L, R, G, P, V, B, T, U, W, S = arrays(x)
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
            Q[many].neck = neck if rate < F[flow].most else ITSELF
            Q[many].flow, Q[many].new, W[STOPS, 0] = flow, rate, many
            _set(1, now, x)
        else:
            Q[many].flow, H[flow].place = flow, many
            many += 1
    for i in range(S[NUM_TOUCHED]):
        link = W[TOUCH, i]
        K[link].touched = 0
        for at in range(K[link].start, K[link].start + K[link].many):
            flow = P[0, at]
            if H[flow].neck == link and H[flow].place < 0:
                Q[many].flow, H[flow].place = flow, many
                many += 1
    S[NUM_FRESH] = S[NUM_ADMITTED] = S[NUM_TOUCHED] = 0
    return many


@compiled(types.float64(types.float64, types.int64), lean=True)
def settle(now: float, x: int) -> float:
    """Take off who has gone, give all others their fair rates, list who ends next.

    Return when that is, or -1 when there was no room for those that came: nothing is
    settled then.
    """
    F, H, K, Q, L, R, G, P, V, B, T, U, W, S = arrays(x)
    for i in range(S[NUM_GONE]):
        _remove(W[GONE, i], x)
    S[NUM_GONE] = 0
    if not admit(x):
        return -1.0
    many, known, links, limited = _begin(now, x), 0, 0, 0
    while known < many:
        links = open_links(known, many, links, x)
        if S[NUM_LIMITED]:
            limited = sort_limits(known, many, limited, x)
        fill(many, links, limited, x)
        known, many = many, _judge(many, links, x)
    _set(many, now, x)
    for i in range(links):
        K[W[LINKS, i]].slot, L[i].weights, V[i] = -1, 0.0, math.inf
    return float(_next(x))
