"""A cache that a policy decides for, replayed over a trace."""

from __future__ import annotations

from typing import Any

import numpy as np

from stretto.search.language.machine import value_of
from stretto.search.quick import quick

__all__ = ["FEATURES", "replay"]

FEATURES = ("age", "life", "count", "size", "gap", "away", "returns", "residents")
"""Of an object: requests since its last use, and since it came in; uses since then;
bytes; requests between its last two uses; how long it was away before it came in, or 0;
how often it has come back; and how many objects are in the cache."""

_CODE = "float64[::1],float64[::1]"
_STATE, _ROW = "int64[:,::1]", "float64[::1]"
_FIVE = ",".join(["int64"] * 5)
_LAST, _CAME, _COUNT, _HELD, _GAP, _GONE, _RETURNS, _PLACE = range(8)
"""What is known of an object. GONE: when it left; while it is here, how long it had
been away. PLACE: one more than where it is in the main part, 0 nowhere, -1 in the
queue."""


@quick(f"void({_STATE},int64,int64,int64,{_ROW})")
def _describe(state: Any, one: int, now: int, residents: int, features: Any) -> None:
    """Put down the features of an object that is in the cache."""
    features[0] = float(now - state[_LAST, one])
    features[1] = float(now - state[_CAME, one])
    features[2] = float(state[_COUNT, one])
    features[3] = float(state[_HELD, one])
    features[4] = float(state[_GAP, one])
    features[5] = float(state[_GONE, one])
    features[6] = float(state[_RETURNS, one])
    features[7] = float(residents)


@quick(f"void({_STATE},int64,int64)")
def _use(state: Any, one: int, now: int) -> None:
    """Note that an object is used that is in the cache."""
    state[_GAP, one] = now - state[_LAST, one]
    state[_LAST, one] = now
    state[_COUNT, one] += 1


@quick(f"void({_STATE},int64,int64,int64)")
def _come(state: Any, one: int, size: int, now: int) -> None:
    """Note that an object comes in, for the first time or again."""
    again = state[_COUNT, one] > 0
    state[_GAP, one] = now - state[_LAST, one] if again else 0
    state[_GONE, one] = now - state[_GONE, one] if again else 0
    state[_RETURNS, one] += again
    state[_LAST, one] = now
    state[_CAME, one] = now
    state[_COUNT, one] = 1
    state[_HELD, one] = size


@quick(
    f"int64({_STATE},int64[::1],int64,int64,int64,int64,uint64[::1],{_CODE},{_ROW},{_ROW})"
)
def _least(
    state: Any, main: Any, mains: int, spared: int, now: int, sample: int, random: Any,
    words: Any, values: Any, features: Any, stack: Any,
) -> int:  # fmt: skip
    """Return which of a few objects of the main part has the least score, or -1."""
    worst, least = -1, 0.0
    for _ in range(min(sample, mains)):
        random[0] ^= random[0] << np.uint64(13)
        random[0] ^= random[0] >> np.uint64(7)
        random[0] ^= random[0] << np.uint64(17)
        other = main[int(random[0] % np.uint64(mains))]
        if other == spared and mains > 1:
            continue
        _describe(state, other, now, mains, features)
        found = value_of(words, values, features, stack)
        if worst < 0 or found < least:
            worst, least = other, found
    return int(worst)


@quick(f"int64(int64[::1],int64[::1],{_FIVE},{','.join([_CODE] * 3)})")
def replay(
    ids: Any, sizes: Any, objects: int, capacity: int, room: int, sample: int,
    begin: int, direct_words: Any, direct_values: Any, promote_words: Any,
    promote_values: Any, score_words: Any, score_values: Any,
) -> int:  # fmt: skip
    """Return how many requests from `begin` on miss; the queue has that `room`."""
    state = np.zeros((8, objects), np.int64)
    main, queue = np.empty(objects, np.int64), np.empty(objects, np.int64)
    features, stack = np.zeros(8), np.zeros(32)
    random = np.full(1, 88172645463325252, np.uint64)
    mains, head, queued, main_bytes, queue_bytes, missed = 0, 0, 0, 0, 0, 0
    for now in range(len(ids)):
        one, size = ids[now], sizes[now]
        if state[_PLACE, one] != 0:
            _use(state, one, now)
            continue
        if now >= begin:
            missed += 1
        if size > capacity:
            continue
        _come(state, one, size, now)
        _describe(state, one, now, mains + queued, features)
        direct = (
            room < size or value_of(direct_words, direct_values, features, stack) != 0
        )
        if direct:
            main[mains], mains = one, mains + 1
            state[_PLACE, one] = mains
            main_bytes += size
        else:
            queue[(head + queued) % objects] = one
            state[_PLACE, one] = -1
            queued += 1
            queue_bytes += size
        while main_bytes + queue_bytes > capacity or (queue_bytes > room and queued):
            if queued and (queue_bytes > room or mains <= (1 if direct else 0)):
                old = queue[head]
                head, queued = (head + 1) % objects, queued - 1
                queue_bytes -= state[_HELD, old]
                _describe(state, old, now, mains + queued, features)
                if value_of(promote_words, promote_values, features, stack) != 0:
                    main[mains], mains = old, mains + 1
                    state[_PLACE, old] = mains
                    main_bytes += state[_HELD, old]
                else:
                    state[_PLACE, old], state[_GONE, old] = 0, now
                continue
            worst = _least(
                state, main, mains, one, now, sample, random, score_words,
                score_values, features, stack,
            )  # fmt: skip
            if worst < 0:
                continue
            mains -= 1
            at = state[_PLACE, worst] - 1
            main[at] = main[mains]
            state[_PLACE, main[at]] = at + 1
            state[_PLACE, worst], state[_GONE, worst] = 0, now
            main_bytes -= state[_HELD, worst]
    return missed
