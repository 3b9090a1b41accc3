"""A cache that also fetches ahead, replayed over addresses: one policy for both.

What is fetched and thrown out unused is pollution, and counted. All addresses, those
that are only fetched too, get a number as they come, from a table of hashes.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from stretto.search.language.machine import value_of
from stretto.search.quick import quick

__all__ = ["FARTHEST", "FEATURES", "replay_fetching"]

FEATURES = ("age", "count", "gap", "unused", "run", "stride", "right")
"""Of a line: requests since its last use; uses; requests between its last two uses;
whether it was fetched ahead and not used yet; of its stream, as it came in: how often
the last stride has come again, and that stride; and which share of what was fetched
ahead of late has been used."""
FARTHEST = 4
"""Strides ahead, at most."""
_LAST, _COUNT, _GAP, _UNUSED, _RUN, _STRIDE, _PLACE, _ADDRESS = range(8)
_CODE = "float64[::1],float64[::1]"
_STATE, _ROW, _WORDS = "int64[:,::1]", "float64[::1]", "int64[::1]"


@quick(f"int64({_WORDS},{_STATE},{_WORDS},int64)")
def _number(table: Any, state: Any, known: Any, address: int) -> int:
    """Return the number of an address, a new one if it has none."""
    size = len(table)
    at = (address * 0x9E3779B1) % size
    while table[at] >= 0:
        if state[_ADDRESS, table[at]] == address:
            return int(table[at])
        at = (at + 1) % size
    table[at] = known[0]
    state[_ADDRESS, known[0]] = address
    known[0] += 1
    return int(table[at])


@quick(f"void({_STATE},int64,int64,float64,{_ROW})")
def _describe(state: Any, one: int, now: int, right: float, features: Any) -> None:
    features[0] = float(now - state[_LAST, one])
    features[1] = float(state[_COUNT, one])
    features[2] = float(state[_GAP, one])
    features[3] = float(state[_UNUSED, one])
    features[4] = float(state[_RUN, one])
    features[5] = float(state[_STRIDE, one])
    features[6] = right


@quick(
    f"float64({_STATE},{_WORDS},{_WORDS},int64,int64,int64,float64,uint64[::1],{_CODE},{_ROW},{_ROW})"
)
def _admit(
    state: Any, held: Any, counts: Any, one: int, capacity: int, now: int,
    right: float, random: Any, words: Any, values: Any, features: Any, stack: Any,
) -> float:  # fmt: skip
    """Let a line in, and of a few the one of least score out; return what was right."""
    if counts[0] == capacity:
        worst, least = -1, 0.0
        for _ in range(min(8, capacity)):
            random[0] ^= random[0] << np.uint64(13)
            random[0] ^= random[0] >> np.uint64(7)
            random[0] ^= random[0] << np.uint64(17)
            other = held[int(random[0] % np.uint64(capacity))]
            _describe(state, other, now, right, features)
            found = value_of(words, values, features, stack)
            if worst < 0 or found < least:
                worst, least = other, found
        if state[_UNUSED, worst]:
            counts[3] += 1
            right -= right / 64.0
        place = state[_PLACE, worst] - 1
        state[_PLACE, worst] = 0
        state[_UNUSED, worst] = 0
    else:
        place = counts[0]
        counts[0] += 1
    held[place] = one
    state[_PLACE, one] = place + 1
    return right


@quick(f"void({_WORDS},{_WORDS},int64,int64,int64,{_CODE},{_CODE},{_CODE},{_WORDS})")
def replay_fetching(
    addresses: Any, streams: Any, many: int, capacity: int, begin: int,
    fetch_words: Any, fetch_values: Any, ahead_words: Any, ahead_values: Any,
    score_words: Any, score_values: Any, counts: Any,
) -> None:  # fmt: skip
    """Count from `begin` on: 1 misses, 2 fetched ahead, 3 unused, 4 first used."""
    room = (1 + FARTHEST) * len(addresses) + 1
    state = np.zeros((8, room), np.int64)
    table = np.full(2 * room + 1, -1, np.int64)
    known, held = np.zeros(1, np.int64), np.zeros(capacity, np.int64)
    last = np.zeros(many, np.int64)
    stride, run = np.zeros(many, np.int64), np.zeros(many, np.int64)
    features, stack = np.zeros(7), np.zeros(32)
    random = np.full(1, 88172645463325252, np.uint64)
    right = 0.5
    for now in range(len(addresses)):
        if now == begin:
            counts[1:] = 0
        address, stream = addresses[now], streams[now]
        step = address - last[stream]
        run[stream] = run[stream] + 1 if step == stride[stream] else 0
        stride[stream], last[stream] = step, address
        one = _number(table, state, known, address)
        if state[_PLACE, one]:
            if state[_UNUSED, one]:
                counts[4] += 1
                right += (1.0 - right) / 64.0
                state[_UNUSED, one] = 0
        else:
            counts[1] += 1
        state[_GAP, one] = now - state[_LAST, one] if state[_COUNT, one] else 0
        state[_LAST, one] = now
        state[_COUNT, one] += 1
        state[_RUN, one], state[_STRIDE, one] = run[stream], step
        if not state[_PLACE, one]:
            right = _admit(
                state, held, counts, one, capacity, now, right, random, score_words,
                score_values, features, stack,
            )  # fmt: skip
        if step == 0:
            continue
        _describe(state, one, now, right, features)
        if value_of(fetch_words, fetch_values, features, stack) == 0.0:
            continue
        far = value_of(ahead_words, ahead_values, features, stack)
        for k in range(1, 1 + int(max(1.0, min(float(FARTHEST), far)))):
            other = _number(table, state, known, address + k * step)
            if state[_PLACE, other]:
                continue
            counts[2] += 1
            state[_UNUSED, other], state[_LAST, other] = 1, now
            state[_RUN, other], state[_STRIDE, other] = run[stream], step
            right = _admit(
                state, held, counts, other, capacity, now, right, random,
                score_words, score_values, features, stack,
            )  # fmt: skip
