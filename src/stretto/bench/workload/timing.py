"""Batches of calls: the clock is read at their ends only.

A batch is long enough to be timed, so that a call is charged neither for the clock nor
for a loop in Python: `repeat` hands out the same object for ever, and the call is bound
to its arguments beforehand.
"""

from __future__ import annotations

import contextlib
import math
import os
from collections.abc import Callable, Iterator
from itertools import repeat
from typing import Any, TypeAlias

from stretto.trace import MONOTONIC, Clock

__all__ = ["SHORTEST_US", "Call", "Timer", "pinned", "run_batch", "turns_for"]

Call: TypeAlias = Callable[[], Any]
Timer: TypeAlias = Callable[[Call, int, bool], float]
"""Returns microseconds a call, of so many calls, each from cold caches or not."""

SHORTEST_US = 20.0
"""No batch is shorter: reading the clock twice is then within a percent."""
_MOST_TURNS = 20_000


def run_batch(
    call: Call, turns: int, *, settle: Call | None = None, clock: Clock = MONOTONIC
) -> float:
    """Return the microseconds a call takes in a batch of `turns` calls.

    `settle` waits for what was only enqueued, inside the batch.
    """
    again = repeat(None, turns)
    began_us = clock.now_us()
    for _ in again:
        call()
    if settle is not None:
        settle()
    return (clock.now_us() - began_us) / turns


@contextlib.contextmanager
def pinned(rank: int, num_ranks: int) -> Iterator[None]:
    """Keep this thread on a core of its own, where there is one for every rank.

    Ranks that wake each other are else put on one core together, for a whole run at
    times. Other threads of the process, such as Gloo's, go where they like.
    """
    cores = sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else []
    if len(cores) < num_ranks:
        yield
        return
    os.sched_setaffinity(0, {cores[rank]})
    try:
        yield
    finally:
        os.sched_setaffinity(0, cores)


def turns_for(us_per_call: float, batch_us: float) -> int:
    """Return how many calls make a batch of at least `batch_us`."""
    if not us_per_call > 0:
        return _MOST_TURNS
    return max(1, min(_MOST_TURNS, math.ceil(batch_us / us_per_call)))
