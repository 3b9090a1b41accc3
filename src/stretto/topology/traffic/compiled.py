"""`sharing.py` once more, for Numba: the same rates to the last bit, far faster.

A test compares the two. Everything is a row of an array:

F, I flows, floats and whole numbers; K, L links likewise; R the links of all routes,
one route behind the other; P a part for each link: its flows in the order of coming,
and below them those of these that are affected; W lists that one settling works with;
S single numbers.

V levels of links, T ends of flows, B and U the same memory read as whole numbers: what
is not negative has the order of its bits, and the least of whole numbers is found many
at a time. Behind them lies the least of every `_BLOCK`, -1 where it must be found anew,
and one word more.

To fill again, with more flows, is cheap: only links with new flows are read anew. What
a link knows of its other flows (`TOP`, `LEAST`) says whether one of them is wronged.
"""

from __future__ import annotations

import math
from typing import Any

from stretto.fabric.jit.atomics import compiled, direct

__all__ = ["admit", "direct", "settle"]

RATE, SHARE, LEFT, SINCE, WEIGHT, MOST, LIMIT, NEW = range(8)
FIRST, HOPS, NECK, NEW_NECK, PLACE, STOPPED, AGE = range(7)
CAPACITY, FREE, WEIGHTS, TOP, LEAST, ROOM, COUNT, HIGHEST, OWN = range(9)
START, MANY, PLACES, TOUCHED, SLOT, MINE, STALE, WRONGS = range(8)
FRESH, GONE, TOUCH, AFFECTED, ORDER, LINKS, STOPS, READ, DUE = range(9)
NUM_FRESH, NUM_ADMITTED, NUM_GONE, NUM_TOUCHED, NUM_DUE, EVENTS, USED = range(7)

_ITSELF, _NONE = -1, 1e-9
_SAME, _NEAR, _MOMENT = 1 + 1e-12, 1 + 1e-9, 1e-9
_FULL, _FREE = 3e-10, 3e-9
"""Shares of a capacity on either side of `_NEAR`, further than what rounding does."""
_BLOCK = 64
_INFINITY = 0x7FF0000000000000
_ARRAYS = (
    "Tuple((float64[:,::1], int64[:,::1], float64[:,::1], int64[:,::1], int64[::1],"
    " int64[:,::1], float64[::1], int64[::1], float64[::1], int64[::1], int64[:,::1],"
    " int64[::1]))"
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


@compiled(f"boolean({_ARRAYS})", lean=True)
def admit(x: Any) -> bool:
    """Put those that came on their links; return whether there was room for all.

    A link whose part is full gets one of twice the size, behind all parts.
    """
    F, I, K, L, R, P, V, B, T, U, W, S = x
    while S[NUM_ADMITTED] < S[NUM_FRESH]:
        flow, need = W[FRESH, S[NUM_ADMITTED]], 0
        first, hops = I[flow, FIRST], I[flow, HOPS]
        for at in range(first, first + hops):
            if L[R[at], MANY] + hops > L[R[at], PLACES]:
                need += 2 * L[R[at], PLACES]
        if S[USED] + need > P.shape[1]:
            return False
        for at in range(first, first + hops):
            link = R[at]
            if L[link, MANY] == L[link, PLACES]:
                for i in range(L[link, MANY]):
                    P[0, S[USED] + i] = P[0, L[link, START] + i]
                L[link, START], L[link, PLACES] = S[USED], 2 * L[link, PLACES]
                S[USED] += L[link, PLACES]
            P[0, L[link, START] + L[link, MANY]] = flow
            L[link, MANY] += 1
        F[flow, RATE], I[flow, NECK], I[flow, PLACE] = 0.0, _ITSELF, -1
        S[NUM_ADMITTED] += 1
    return True


@compiled(f"void(int64, {_ARRAYS})", lean=True)
def _remove(flow: int, x: Any) -> None:
    """Take a flow off its links."""
    F, I, K, L, R, P, V, B, T, U, W, S = x
    for hop in range(I[flow, FIRST], I[flow, FIRST] + I[flow, HOPS]):
        link = R[hop]
        at, last = L[link, START], L[link, START] + L[link, MANY] - 1
        while P[0, at] != flow:
            at += 1
        for i in range(at, last):
            P[0, i] = P[0, i + 1]
        L[link, MANY] -= 1
        if L[link, MANY] and not L[link, TOUCHED]:
            L[link, TOUCHED] = 1
            W[TOUCH, S[NUM_TOUCHED]] = link
            S[NUM_TOUCHED] += 1
    T[flow] = math.inf
    U[_behind(U) + flow // _BLOCK] = -1


@compiled(f"float64({_ARRAYS})", lean=True)
def _next(x: Any) -> float:
    """List the flows that end in the next moment; return when it begins."""
    F, I, K, L, R, P, V, B, T, U, W, S = x
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


@compiled(f"void(int64, float64, {_ARRAYS})", lean=True)
def _set(many: int, now: float, x: Any) -> None:
    """Give those that have stopped their rates, and their ends an age."""
    F, I, K, L, R, P, V, B, T, U, W, S = x
    behind = _behind(U)
    for i in range(many):
        flow = W[STOPS, i]
        rate, had = F[flow, NEW], F[flow, RATE]
        I[flow, NECK], I[flow, PLACE] = I[flow, NEW_NECK], -1
        if abs(rate - had) <= rate * 1e-12:
            continue
        left = max(0.0, F[flow, LEFT] - had * (now - F[flow, SINCE]))
        F[flow, LEFT], F[flow, SINCE], F[flow, RATE] = left, now, rate
        F[flow, SHARE] = rate / F[flow, WEIGHT]
        T[flow] = now + left / rate if rate > 0 else math.inf
        U[behind + flow // _BLOCK] = -1
        S[EVENTS] += 1
        I[flow, AGE] = S[EVENTS]


@compiled("boolean(int64, int64, float64[:,::1], int64[:,::1])", lean=True)
def _is_later(one: int, other: int, F: Any, I: Any) -> Any:
    """Return whether one limit is higher; of equal ones the last came first."""
    a, b = F[one, LIMIT], F[other, LIMIT]
    return a > b or (a == b and I[one, PLACE] < I[other, PLACE])


@compiled(f"int64(int64, {_ARRAYS})", lean=True)
def _sort(many: int, x: Any) -> int:
    """Order those that have a limit of their own, the least first; return how many.

    Of equal ones the last of `affected` comes first. A heap sort keeps this quick.
    """
    F, I, K, L, R, P, V, B, T, U, W, S = x
    size = 0
    for i in range(many):
        flow = W[AFFECTED, i]
        if F[flow, LIMIT] == math.inf:
            continue
        child = size
        size += 1
        while child:
            parent = (child - 1) >> 1
            if _is_later(W[ORDER, parent], flow, F, I):
                break
            W[ORDER, child] = W[ORDER, parent]
            child = parent
        W[ORDER, child] = flow
    for last in range(size - 1, 0, -1):
        flow, W[ORDER, last] = W[ORDER, last], W[ORDER, 0]
        hole = 0
        while 2 * hole + 1 < last:
            child = 2 * hole + 1
            if child + 1 < last:
                child += _is_later(W[ORDER, child + 1], W[ORDER, child], F, I)
            if _is_later(flow, W[ORDER, child], F, I):
                break
            W[ORDER, hole] = W[ORDER, child]
            hole = child
        W[ORDER, hole] = flow
    return size


@compiled(f"void(int64, {_ARRAYS})", lean=True)
def _read(stale: int, x: Any) -> None:
    """Find what others leave of links, how they fare, and whose are affected."""
    F, I, K, L, R, P, V, B, T, U, W, S = x
    for i in range(stale):
        link = W[READ, i]
        taken, top, least, mine, start = 0.0, -1.0, math.inf, 0, L[link, START]
        for at in range(start, start + L[link, MANY]):
            flow = P[0, at]
            rate, share, is_mine = F[flow, RATE], F[flow, SHARE], I[flow, PLACE] >= 0
            P[1, start + mine] = flow
            mine += is_mine
            taken += 0.0 if is_mine else rate
            share = -1.0 if is_mine else share
            top = share if share > top else top
            share = share if I[flow, NECK] == link and not is_mine else math.inf
            least = share if share < least else least
        K[link, FREE] = max(0.0, K[link, CAPACITY] - taken)
        K[link, TOP], K[link, LEAST] = top, least
        L[link, MINE], L[link, STALE] = mine, 0


@compiled(f"int64(int64, int64, int64, {_ARRAYS})", lean=True)
def _open(known: int, many: int, links: int, x: Any) -> int:
    """Find the room on the links of the affected, some of whom were `known` before.

    Return how many links these are.
    """
    F, I, K, L, R, P, V, B, T, U, W, S = x
    stale = 0
    for i in range(known, many):
        flow = W[AFFECTED, i]
        first = I[flow, FIRST]
        for at in range(first, first + I[flow, HOPS]):
            link = R[at]
            if L[link, SLOT] < 0:
                L[link, SLOT], W[LINKS, links], K[link, WEIGHTS] = links, link, 0.0
                links += 1
            K[link, WEIGHTS] += F[flow, WEIGHT]
            if not L[link, STALE]:
                L[link, STALE], W[READ, stale] = 1, link
                stale += 1
    _read(stale, x)
    for i in range(many):
        I[W[AFFECTED, i], STOPPED] = 0
    for i in range(links):
        link = W[LINKS, i]
        room, count = K[link, FREE], K[link, WEIGHTS]
        K[link, ROOM], K[link, COUNT], V[i] = room, count, room / count
        K[link, HIGHEST], K[link, OWN] = 0.0, -1.0
    behind = _behind(B)
    for block in range((links + _BLOCK - 1) // _BLOCK):
        B[behind + block] = -1
    return links


@compiled(f"int64(int64, int64, {_ARRAYS})", lean=True)
def _stop_rest(many: int, stops: int, x: Any) -> int:
    """List behind the stopped all others: nothing holds them back."""
    F, I, K, L, R, P, V, B, T, U, W, S = x
    for i in range(many - 1, -1, -1):
        flow = W[AFFECTED, i]
        if not I[flow, STOPPED]:
            W[STOPS, stops], I[flow, NEW_NECK] = flow, _ITSELF
            stops += 1
    return int(stops)


@compiled(f"void(int64, int64, {_ARRAYS})", lean=True)
def _fill(many: int, links: int, x: Any) -> None:
    """Raise the rates of the affected together; whoever meets a full link stops."""
    F, I, K, L, R, P, V, B, T, U, W, S = x
    limited, at, stops = _sort(many, x), 0, 0
    behind, blocks = _behind(B), (links + _BLOCK - 1) // _BLOCK
    while stops < many:
        while at < limited and I[W[ORDER, at], STOPPED]:
            at += 1
        level, first = _lowest(V, B, links), stops
        if at < limited and F[W[ORDER, at], LIMIT] <= level:
            flow = W[ORDER, at]
            level, W[STOPS, stops], I[flow, NEW_NECK] = F[flow, LIMIT], flow, _ITSELF
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
                    for i in range(L[link, START], L[link, START] + L[link, MINE]):
                        flow = P[1, i]
                        if I[flow, STOPPED] < 2:
                            if not I[flow, STOPPED]:
                                I[flow, STOPPED], W[STOPS, stops] = 1, flow
                                stops += 1
                            I[flow, NEW_NECK] = link
        else:
            stops = _stop_rest(many, stops, x)
        for i in range(first, stops):  # take what each has from its links
            flow = W[STOPS, i]
            weight, neck = F[flow, WEIGHT], I[flow, NEW_NECK]
            rate = level * weight
            share = rate / weight
            F[flow, NEW], I[flow, STOPPED] = rate, 2
            for hop in range(I[flow, FIRST], I[flow, FIRST] + I[flow, HOPS]):
                link = R[hop]
                room, count = max(0.0, K[link, ROOM] - rate), K[link, COUNT] - weight
                K[link, ROOM], K[link, COUNT] = room, count
                V[L[link, SLOT]] = math.inf if count < _NONE else room / count
                B[behind + L[link, SLOT] // _BLOCK] = -1
                if share > K[link, HIGHEST]:
                    K[link, HIGHEST] = share
            if neck >= 0:
                K[neck, OWN] = max(K[neck, OWN], share)


@compiled(f"boolean(int64, {_ARRAYS})", lean=True)
def _is_full(link: int, x: Any) -> bool:
    """Return whether a link is full, by the sum of all rates on it."""
    F, I, K, L, R, P, V, B, T, U, W, S = x
    total = 0.0
    for at in range(L[link, START], L[link, START] + L[link, MANY]):
        flow = P[0, at]
        total += F[flow, NEW] if I[flow, PLACE] >= 0 else F[flow, RATE]
    return total * _NEAR >= K[link, CAPACITY]


@compiled(f"int64(int64, int64, {_ARRAYS})", lean=True)
def _judge(many: int, links: int, x: Any) -> int:
    """Add whoever is wronged on some link to the affected; return how many they are.

    What a link knows says whether there is one, who has too much (1), or less than is
    there (2); only such are read, in the order in which flows have stopped.
    """
    F, I, K, L, R, P, V, B, T, U, W, S = x
    unfair, stopped = 0, 0
    for i in range(links):
        link = W[LINKS, i]
        own, wrongs = K[link, OWN], 0
        if K[link, LEAST] < math.inf:
            room, much = K[link, ROOM], K[link, CAPACITY]
            if room > much * _FREE or (room >= much * _FULL and not _is_full(link, x)):
                wrongs = 2
            elif K[link, LEAST] * _NEAR < K[link, HIGHEST]:
                wrongs = 1
        if not wrongs and own >= 0 and K[link, TOP] > own * _NEAR:
            wrongs = 1
        L[link, WRONGS] = wrongs
        unfair += wrongs > 0
    while unfair:
        flow = W[STOPS, stopped]
        stopped += 1
        for hop in range(I[flow, FIRST], I[flow, FIRST] + I[flow, HOPS]):
            link = R[hop]
            if not L[link, WRONGS]:
                continue
            most = math.inf if L[link, WRONGS] == 2 else K[link, HIGHEST]
            level = K[link, OWN] if K[link, OWN] >= 0 else math.inf
            L[link, WRONGS] = 0
            unfair -= 1
            for at in range(L[link, START], L[link, START] + L[link, MANY]):
                other = P[0, at]
                share = F[other, SHARE]
                if I[other, PLACE] < 0 and (
                    (I[other, NECK] == link and share * _NEAR < most)
                    or share > level * _NEAR
                ):
                    W[AFFECTED, many], I[other, PLACE] = other, many
                    many += 1
    return int(many)


@compiled(f"int64(float64, {_ARRAYS})", lean=True)
def _begin(now: float, x: Any) -> int:
    """List who came and whose neck was touched; return how many.

    Who is alone on its links has its rate at once.
    """
    F, I, K, L, R, P, V, B, T, U, W, S = x
    many = 0
    for i in range(S[NUM_FRESH]):
        flow = W[FRESH, i]
        first = I[flow, FIRST]
        alone, neck = True, R[first]
        for at in range(first, first + I[flow, HOPS]):
            alone = alone and L[R[at], MANY] == 1
            if K[R[at], CAPACITY] < K[neck, CAPACITY]:
                neck = R[at]
        if alone:
            rate = min(F[flow, MOST], K[neck, CAPACITY])
            I[flow, NEW_NECK] = neck if rate < F[flow, MOST] else _ITSELF
            F[flow, NEW], W[STOPS, 0] = rate, flow
            _set(1, now, x)
        else:
            W[AFFECTED, many], I[flow, PLACE] = flow, many
            many += 1
    for i in range(S[NUM_TOUCHED]):
        link = W[TOUCH, i]
        L[link, TOUCHED] = 0
        for at in range(L[link, START], L[link, START] + L[link, MANY]):
            flow = P[0, at]
            if I[flow, NECK] == link and I[flow, PLACE] < 0:
                W[AFFECTED, many], I[flow, PLACE] = flow, many
                many += 1
    S[NUM_FRESH] = S[NUM_ADMITTED] = S[NUM_TOUCHED] = 0
    return many


@compiled(f"float64(float64, {_ARRAYS})", lean=True)
def settle(now: float, x: Any) -> float:
    """Take off who has gone, give all others their fair rates, list who ends next.

    Return when that is, or -1 when there was no room for those that came: nothing is
    settled then.
    """
    F, I, K, L, R, P, V, B, T, U, W, S = x
    for i in range(S[NUM_GONE]):
        _remove(W[GONE, i], x)
    S[NUM_GONE] = 0
    if not admit(x):
        return -1.0
    many, known, links = _begin(now, x), 0, 0
    while known < many:
        links = _open(known, many, links, x)
        _fill(many, links, x)
        known, many = many, _judge(many, links, x)
    _set(many, now, x)
    for i in range(links):
        L[W[LINKS, i], SLOT] = -1
    return float(_next(x))
