"""Slots in time: who is early waits for its slot, who is late goes at once.

Jobs that share links keep to such grids, so that one computes while another sends. The
period is a little longer than an iteration takes, so that who was late catches up.
"""

from __future__ import annotations

import math

__all__ = ["Grid"]


class Grid:
    """Slots at `origin + k * period`, one for every iteration of a job."""

    __slots__ = ("_slot", "origin_us", "period_us")

    def __init__(self, origin_us: float, period_us: float) -> None:
        self.origin_us, self.period_us = origin_us, period_us
        self._slot: int | None = None

    def start(self, ready_us: float) -> float:
        """Take the next slot; return when to go for who is ready at that time.

        The first slot is the first that can be met; slots missed altogether are left
        out, and the rest are as many as calls.
        """
        since = (ready_us - self.origin_us) / self.period_us
        if self._slot is None:
            self._slot = math.ceil(since - 1e-9)
        else:
            self._slot = max(self._slot + 1, math.floor(since))
        return max(ready_us, self.origin_us + self._slot * self.period_us)
