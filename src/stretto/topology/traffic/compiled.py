"""`sharing.py` once more, for Numba: the same rates to the last bit, far faster.

A test compares the two. Flows, links and the places where they meet are rows of arrays:

F flows, floats; I flows, whole numbers; K links, floats; L links, whole numbers;
E meetings (flow * S[WIDE] + hop), which form a list per link in the order of coming;
W lists that one settling works with; S single numbers; T, A the heap of ends: when,
and of which age and flow.
"""

from __future__ import annotations

import math
from typing import Any

from stretto.fabric.jit.atomics import compiled

__all__ = ["add", "due", "next_end", "remove", "settle"]

RATE, LEFT, SINCE, ENDS, MOST, WEIGHT, NEW, SHARE = range(8)
HOPS, NECK, NEW_NECK, PLACE, STOPPED, AGE, BORN = range(7)
CAPACITY, ROOM, COUNT, LEVEL = range(4)
HEAD, TAIL, MANY, TOUCHED, SEEN = range(5)
LINK, NEXT, BEFORE = range(3)
FRESH, TOUCH, AFFECTED, ORDER, LINKS, STOPS, WRONGED, FULL = range(8)
NUM_FRESH, NUM_TOUCHED, NUM_ENDS, EVENTS, WIDE, MANY_CAME = range(6)

_ITSELF, _NONE = -1, 1e-9
_SAME, _NEAR, _MOMENT = 1 + 1e-12, 1 + 1e-9, 1e-9
_ARRAYS = (
    "Tuple((float64[:,::1], int64[:,::1], float64[:,::1], int64[:,::1], int64[:,::1],"
    " int64[:,::1], int64[::1], float64[::1], int64[:,::1]))"
)


@compiled(f"void(int64, float64, {_ARRAYS})", lean=True)
def add(flow: int, now: float, x: Any) -> None:
    """Let a flow begin; it has no rate before the next `settle`."""
    F, I, K, L, E, W, S, T, A = x
    F[SINCE, flow], F[RATE, flow], F[ENDS, flow] = now, 0.0, math.inf
    I[NECK, flow], I[PLACE, flow] = _ITSELF, -1
    for at in range(flow * S[WIDE], flow * S[WIDE] + I[HOPS, flow]):
        link = E[LINK, at]
        last = L[TAIL, link]
        E[NEXT, at], E[BEFORE, at] = -1, last
        if last < 0:
            L[HEAD, link] = at
        else:
            E[NEXT, last] = at
        L[TAIL, link] = at
        L[MANY, link] += 1
    W[FRESH, S[NUM_FRESH]] = flow
    S[NUM_FRESH] += 1
    I[BORN, flow] = S[EVENTS]


@compiled(f"void(int64, {_ARRAYS})", lean=True)
def remove(flow: int, x: Any) -> None:
    """Take a flow off its links."""
    F, I, K, L, E, W, S, T, A = x
    for at in range(flow * S[WIDE], flow * S[WIDE] + I[HOPS, flow]):
        link = E[LINK, at]
        before, after = E[BEFORE, at], E[NEXT, at]
        if before < 0:
            L[HEAD, link] = after
        else:
            E[NEXT, before] = after
        if after < 0:
            L[TAIL, link] = before
        else:
            E[BEFORE, after] = before
        L[MANY, link] -= 1
        if L[MANY, link] and not L[TOUCHED, link]:
            L[TOUCHED, link] = 1
            W[TOUCH, S[NUM_TOUCHED]] = link
            S[NUM_TOUCHED] += 1


@compiled(
    "void(float64, int64, int64, float64[::1], int64[:,::1], int64[::1])", lean=True
)
def _push(when: float, age: int, flow: int, T: Any, A: Any, S: Any) -> None:
    """Add an end to the heap: by time, then by age."""
    child = S[NUM_ENDS]
    S[NUM_ENDS] += 1
    while child:
        parent = (child - 1) >> 1
        if T[parent] < when or (T[parent] == when and A[0, parent] < age):
            break
        T[child], A[0, child], A[1, child] = T[parent], A[0, parent], A[1, parent]
        child = parent
    T[child], A[0, child], A[1, child] = when, age, flow


@compiled("void(float64[::1], int64[:,::1], int64[::1])", lean=True)
def _pop(T: Any, A: Any, S: Any) -> None:
    """Take the first end from the heap."""
    S[NUM_ENDS] -= 1
    last = S[NUM_ENDS]
    when, age, flow, hole = T[last], A[0, last], A[1, last], 0
    while 2 * hole + 1 < last:
        child = 2 * hole + 1
        right = child + 1
        if right < last and (
            T[right] < T[child] or (T[right] == T[child] and A[0, right] < A[0, child])
        ):
            child = right
        if when < T[child] or (when == T[child] and age < A[0, child]):
            break
        T[hole], A[0, hole], A[1, hole] = T[child], A[0, child], A[1, child]
        hole = child
    T[hole], A[0, hole], A[1, hole] = when, age, flow


@compiled(f"float64(float64, {_ARRAYS})", lean=True)
def next_end(first: float, x: Any) -> Any:
    """Return when the next moment begins in which a flow ends, or `first` comes.

    A moment is all that the heap holds within `_MOMENT` of its first end, and that may
    be one that is void, because its flow's rate has changed since. Moments of nothing
    but void ends are passed over.
    """
    F, I, K, L, E, W, S, T, A = x
    while S[NUM_ENDS]:
        start, age, flow = T[0], A[0, 0], A[1, 0]
        if first <= start + _MOMENT:
            return start
        if age > I[BORN, flow] and F[ENDS, flow] == start:
            return start
        _pop(T, A, S)
        while S[NUM_ENDS] and T[0] <= start + _MOMENT:
            if A[0, 0] > I[BORN, A[1, 0]] and F[ENDS, A[1, 0]] == T[0]:
                _push(start, age, flow, T, A, S)
                return start
            _pop(T, A, S)
    return math.inf


@compiled(f"int64(float64, {_ARRAYS})", lean=True)
def due(until: float, x: Any) -> int:
    """List the flows that end until then in W[ORDER], in order; return how many."""
    F, I, K, L, E, W, S, T, A = x
    many = 0
    while S[NUM_ENDS] and T[0] <= until:
        flow = A[1, 0]
        if A[0, 0] > I[BORN, flow] and F[ENDS, flow] == T[0]:
            F[SHARE, flow], F[ENDS, flow] = T[0], math.nan
            W[ORDER, many] = flow
            many += 1
        _pop(T, A, S)
    return many


@compiled(f"void(int64, float64, float64, {_ARRAYS})", lean=True)
def _set(flow: int, rate: float, now: float, x: Any) -> None:
    """Give a flow its rate, and its end an age."""
    F, I, K, L, E, W, S, T, A = x
    if abs(rate - F[RATE, flow]) <= rate * 1e-12:
        return
    F[LEFT, flow] = max(0.0, F[LEFT, flow] - F[RATE, flow] * (now - F[SINCE, flow]))
    F[SINCE, flow], F[RATE, flow] = now, rate
    F[ENDS, flow] = now + F[LEFT, flow] / rate if rate > 0 else math.inf
    S[EVENTS] += 1
    I[AGE, flow] = S[EVENTS]
    _push(F[ENDS, flow], S[EVENTS], flow, T, A, S)


@compiled(f"int64(int64, {_ARRAYS})", lean=True)
def _sort(many: int, x: Any) -> int:
    """Order those that have a limit of their own, the least first; return how many.

    Of equal ones the last of `affected` comes first. A heap sort keeps this quick.
    """
    F, I, K, L, E, W, S, T, A = x
    size = 0
    for i in range(many):
        flow = W[AFFECTED, i]
        share = F[MOST, flow] / F[WEIGHT, flow]
        if share == math.inf:
            continue
        F[SHARE, flow] = share
        child = size
        size += 1
        while child:
            parent = (child - 1) >> 1
            other = W[ORDER, parent]
            if F[SHARE, other] > share or (
                F[SHARE, other] == share and I[PLACE, other] < I[PLACE, flow]
            ):
                break
            W[ORDER, child] = other
            child = parent
        W[ORDER, child] = flow
    for last in range(size - 1, 0, -1):
        flow, W[ORDER, last] = W[ORDER, last], W[ORDER, 0]
        hole = 0
        while 2 * hole + 1 < last:
            child = 2 * hole + 1
            if child + 1 < last:
                a, b = W[ORDER, child + 1], W[ORDER, child]
                if F[SHARE, a] > F[SHARE, b] or (
                    F[SHARE, a] == F[SHARE, b] and I[PLACE, a] < I[PLACE, b]
                ):
                    child += 1
            a = W[ORDER, child]
            if F[SHARE, flow] > F[SHARE, a] or (
                F[SHARE, flow] == F[SHARE, a] and I[PLACE, flow] < I[PLACE, a]
            ):
                break
            W[ORDER, hole] = a
            hole = child
        W[ORDER, hole] = flow
    return size


@compiled(f"int64(int64, {_ARRAYS})", lean=True)
def _open(many: int, x: Any) -> int:
    """Find the room that other flows leave on the links of the affected ones."""
    F, I, K, L, E, W, S, T, A = x
    links = 0
    for i in range(many):
        flow = W[AFFECTED, i]
        I[STOPPED, flow] = 0
        for at in range(flow * S[WIDE], flow * S[WIDE] + I[HOPS, flow]):
            link = E[LINK, at]
            if not L[SEEN, link]:
                L[SEEN, link] = 1
                W[LINKS, links] = link
                links += 1
                taken = 0.0
                other = L[HEAD, link]
                while other >= 0:
                    if I[PLACE, other // S[WIDE]] < 0:
                        taken += F[RATE, other // S[WIDE]]
                    other = E[NEXT, other]
                K[ROOM, link] = max(0.0, K[CAPACITY, link] - taken)
                K[COUNT, link] = 0.0
            K[COUNT, link] += F[WEIGHT, flow]
    for i in range(links):
        link = W[LINKS, i]
        K[LEVEL, link] = K[ROOM, link] / K[COUNT, link]
    return links


@compiled(f"void(int64, float64, int64, {_ARRAYS})", lean=True)
def _stop(flow: int, level: float, neck: int, x: Any) -> None:
    """Let a flow have its rate, and take that from its links."""
    F, I, K, L, E, W, S, T, A = x
    rate = level * F[WEIGHT, flow]
    F[NEW, flow], I[NEW_NECK, flow], I[STOPPED, flow] = rate, neck, 2
    for at in range(flow * S[WIDE], flow * S[WIDE] + I[HOPS, flow]):
        link = E[LINK, at]
        K[ROOM, link] = max(0.0, K[ROOM, link] - rate)
        K[COUNT, link] -= F[WEIGHT, flow]
        if K[COUNT, link] < _NONE:
            K[LEVEL, link] = math.inf
        else:
            K[LEVEL, link] = K[ROOM, link] / K[COUNT, link]


@compiled(f"int64(int64, {_ARRAYS})", lean=True)
def _fill(many: int, x: Any) -> int:
    """Raise the rates of the affected together; return how many links they are on."""
    F, I, K, L, E, W, S, T, A = x
    links = _open(many, x)
    limited = _sort(many, x)
    at, stops, live = 0, 0, links
    for i in range(links):
        W[FULL, i] = W[LINKS, i]
    while stops < many:
        while at < limited and I[STOPPED, W[ORDER, at]]:
            at += 1
        level, kept = math.inf, 0
        for i in range(live):
            link = W[FULL, i]
            share = K[LEVEL, link]
            if share < math.inf:
                W[FULL, kept] = link
                kept += 1
                level = min(level, share)
        live = kept
        first = stops
        if at < limited and F[SHARE, W[ORDER, at]] <= level:
            level = F[SHARE, W[ORDER, at]]
            W[STOPS, stops] = W[ORDER, at]
            I[NEW_NECK, W[ORDER, at]] = _ITSELF
            stops += 1
        elif live:
            for i in range(live):
                link = W[FULL, i]
                if K[LEVEL, link] > level * _SAME:
                    continue
                other = L[HEAD, link]
                while other >= 0:
                    flow = other // S[WIDE]
                    if I[PLACE, flow] >= 0 and I[STOPPED, flow] < 2:
                        if not I[STOPPED, flow]:
                            I[STOPPED, flow] = 1
                            W[STOPS, stops] = flow
                            stops += 1
                        I[NEW_NECK, flow] = link
                    other = E[NEXT, other]
        else:
            for i in range(many - 1, -1, -1):
                flow = W[AFFECTED, i]
                if not I[STOPPED, flow]:
                    W[STOPS, stops] = flow
                    I[NEW_NECK, flow] = _ITSELF
                    stops += 1
        for i in range(first, stops):
            flow = W[STOPS, i]
            _stop(flow, level, I[NEW_NECK, flow], x)
    return links


@compiled(f"int64(int64, int64, {_ARRAYS})", lean=True)
def _judge(link: int, wronged: int, x: Any) -> int:
    """Add those of a link that the new rates are unfair to, or that are to them."""
    F, I, K, L, E, W, S, T, A = x
    most, level, total, others = 0.0, math.inf, 0.0, 0
    at = L[HEAD, link]
    while at >= 0:
        flow = at // S[WIDE]
        if I[PLACE, flow] >= 0:
            share = F[NEW, flow] / F[WEIGHT, flow]
            total += F[NEW, flow]
            most = max(most, share)
            if I[NEW_NECK, flow] == link:
                level = share if level == math.inf else max(level, share)
        else:
            others += 1
            total += F[RATE, flow]
        at = E[NEXT, at]
    if not others:
        return int(wronged)
    is_full = total * _NEAR >= K[CAPACITY, link]
    at = L[HEAD, link]
    while at >= 0:
        flow = at // S[WIDE]
        if I[PLACE, flow] == -1:
            share = F[RATE, flow] / F[WEIGHT, flow]
            behind = not is_full or share * _NEAR < most
            if (I[NECK, flow] == link and behind) or share > level * _NEAR:
                W[WRONGED, wronged] = flow
                I[PLACE, flow] = -2
                wronged += 1
        at = E[NEXT, at]
    return int(wronged)


@compiled(f"int64({_ARRAYS})", lean=True)
def _begin(x: Any) -> Any:
    """List whose neck was touched beside those that came; return how many."""
    F, I, K, L, E, W, S, T, A = x
    many = S[MANY_CAME]
    for i in range(S[NUM_TOUCHED]):
        link = W[TOUCH, i]
        at = L[HEAD, link]
        while at >= 0:
            flow = at // S[WIDE]
            if I[NECK, flow] == link and I[PLACE, flow] < 0:
                W[AFFECTED, many] = flow
                I[PLACE, flow] = many
                many += 1
            at = E[NEXT, at]
    return many


@compiled(f"void(float64, {_ARRAYS})", lean=True)
def settle(now: float, x: Any) -> None:
    """Give every flow its fair rate."""
    F, I, K, L, E, W, S, T, A = x
    S[MANY_CAME] = 0
    for i in range(S[NUM_FRESH]):
        flow = W[FRESH, i]
        start = flow * S[WIDE]
        alone, neck = True, E[LINK, start]
        for at in range(start, start + I[HOPS, flow]):
            alone = alone and L[MANY, E[LINK, at]] == 1
            if K[CAPACITY, E[LINK, at]] < K[CAPACITY, neck]:
                neck = E[LINK, at]
        if alone:
            rate = min(F[MOST, flow], K[CAPACITY, neck])
            I[NECK, flow] = neck if rate < F[MOST, flow] else _ITSELF
            _set(flow, rate, now, x)
        else:
            W[AFFECTED, S[MANY_CAME]] = flow
            I[PLACE, flow] = S[MANY_CAME]
            S[MANY_CAME] += 1
    many = _begin(x)
    while many:
        links, wronged = _fill(many, x), 0
        for i in range(many):
            first = W[STOPS, i] * S[WIDE]
            for at in range(first, first + I[HOPS, W[STOPS, i]]):
                if L[SEEN, E[LINK, at]] == 1:
                    L[SEEN, E[LINK, at]] = 2
                    wronged = _judge(E[LINK, at], wronged, x)
        for i in range(S[NUM_TOUCHED]):
            if not L[SEEN, W[TOUCH, i]]:
                wronged = _judge(W[TOUCH, i], wronged, x)
        for i in range(links):
            L[SEEN, W[LINKS, i]] = 0
        if not wronged:
            break
        for i in range(wronged):
            W[AFFECTED, many] = W[WRONGED, i]
            I[PLACE, W[WRONGED, i]] = many
            many += 1
    for i in range(many):
        flow = W[STOPS, i]
        I[NECK, flow], I[PLACE, flow] = I[NEW_NECK, flow], -1
        _set(flow, F[NEW, flow], now, x)
    for i in range(S[NUM_TOUCHED]):
        L[TOUCHED, W[TOUCH, i]] = 0
    S[NUM_FRESH] = S[NUM_TOUCHED] = 0
