"""The hook by which a training loop keeps to its slots: `comm.pace(shift, period)`."""

from __future__ import annotations

import math
import time
from typing import Any

from stretto.errors import CallError
from stretto.runtime.pace import Grid
from stretto.trace import WALL

_LONGEST_S = 3600.0


def pace(self: Any, shift: float, period: float) -> float:
    """Wait for the next slot of a job that shares its links with others.

    Slots are `shift` seconds after whole multiples of `period` of the time of day, so
    jobs that were given the same period and different shifts keep apart, on as many
    hosts as agree on the time. Called once an iteration, before it communicates: who is
    early waits, who is late goes at once and catches up in the slots that follow. Each
    rank waits for itself, nothing is sent.

    Returns: the seconds that were waited. Raises: `CallError` for a shift below 0 or a
    period that is not above 0 and at most an hour.

    >>> comm.pace(0.05, 0.2)  # doctest: +SKIP
    0.031
    """
    self._ready("pace")
    given = {"shift": shift, "period": period}
    for name, least in (("shift", 0.0), ("period", 1e-6)):
        value = given[name]
        is_number = isinstance(value, int | float) and not isinstance(value, bool)
        if not is_number or not least <= value <= _LONGEST_S or math.isnan(value):
            raise CallError(
                f"rank {self.rank}: pace: {name}={value!r:.40}; want seconds, "
                f"{least:g} to {_LONGEST_S:g}"
            )
    kept = self._pace
    if kept is None or kept[:2] != (shift, period):
        kept = self._pace = (shift, period, Grid(shift * 1e6, period * 1e6))
    ready = WALL.now_us()
    until: float = kept[2].start(ready)
    while (left := until - WALL.now_us()) > 0:
        time.sleep(min(left / 1e6, period))
    return max(0.0, until - ready) / 1e6
