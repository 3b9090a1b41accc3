"""Batches of calls: the clock is read at their ends only.

A batch is long enough to be timed, so that a call is charged neither for the clock nor
for a loop in Python: `repeat` hands out the same object for ever, and the call is bound
to its arguments beforehand.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from itertools import repeat
from typing import Any, TypeAlias

from stretto.trace import MONOTONIC, Clock

__all__ = ["SHORTEST_US", "Call", "run_batch", "turns_for"]

Call: TypeAlias = Callable[[], Any]

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


def turns_for(us_per_call: float, batch_us: float) -> int:
    """Return how many calls make a batch of at least `batch_us`."""
    if not us_per_call > 0:
        return _MOST_TURNS
    return max(1, min(_MOST_TURNS, math.ceil(batch_us / us_per_call)))
