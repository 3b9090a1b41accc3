"""Batches of calls: the clock is read at their ends only.

A batch is long enough to be timed, so that a call is charged neither for the clock nor
for a loop in Python: `repeat` hands out the same object for ever, and the call is bound
to its arguments beforehand.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from itertools import repeat
from typing import Any, TypeAlias

from stretto.trace import MONOTONIC, Clock

Call: TypeAlias = Callable[[], Any]
Timer: TypeAlias = Callable[[Call, int, bool], float]
"""Returns microseconds a call, of so many calls, each from cold caches or not."""

Span: TypeAlias = tuple[float, float]
"""When a batch began and ended, in microseconds of the clock of this machine."""

SHORTEST_US = 20.0
"""No batch is shorter: reading the clock twice is then within a percent."""
_MOST_TURNS = 20_000


def run_batch(
    call: Call, turns: int, *, settle: Call | None = None, clock: Clock = MONOTONIC
) -> float:
    """Return the microseconds a call takes in a batch of `turns` calls.

    `settle` waits for what was only enqueued, inside the batch.
    """
    began_us, ended_us = span_of(call, turns, settle=settle, clock=clock)
    return (ended_us - began_us) / turns


def span_of(
    call: Call, turns: int, *, settle: Call | None = None, clock: Clock = MONOTONIC
) -> Span:
    """Return when a batch of `turns` calls began and ended."""
    again = repeat(None, turns)
    began_us = clock.now_us()
    for _ in again:
        call()
    if settle is not None:
        settle()
    return began_us, clock.now_us()


def in_turn(first: Call, then: Call) -> Call:
    """Return a call that makes two, one after the other."""

    def call() -> None:
        first()
        then()

    return call


def each_us(call: Call, turns: int, idle_us: float = 0.0) -> list[float]:
    """Return the microseconds of each of so many calls, which nobody need batch.

    Before each one idles, if that is asked for: who waits there may sleep by then.
    """
    found, now = [], time.perf_counter
    for _ in range(turns):
        if idle_us:
            time.sleep(1e-6 * idle_us)
        began = now()
        call()
        found.append((now() - began) * 1e6)
    return found


def turns_for(us_per_call: float, batch_us: float) -> int:
    """Return how many calls make a batch of at least `batch_us`."""
    if not us_per_call > 0:
        return _MOST_TURNS
    return max(1, min(_MOST_TURNS, math.ceil(batch_us / us_per_call)))
