"""The only clock: microseconds that never run backwards.

Whatever depends on time takes a `Clock` as an argument, so that it can be simulated.
"""

from __future__ import annotations

import time
from typing import Protocol


class Clock(Protocol):
    """Something that tells the time."""

    def now_us(self) -> float:
        """Return the time in microseconds since some fixed moment."""
        ...


class MonotonicClock:
    """This machine's clock; ranks on one host read the same one."""

    __slots__ = ()

    def now_us(self) -> float:
        """Return the time in microseconds since some moment before this process."""
        return time.monotonic_ns() / 1e3


MONOTONIC = MonotonicClock()
"""The clock of everything that really runs."""


class WallClock:
    """The time of day, on which hosts agree as well as their clocks are set."""

    __slots__ = ()

    def now_us(self) -> float:
        """Return the time in microseconds since 1970."""
        return time.time_ns() / 1e3


WALL = WallClock()
"""The clock of what several hosts do at one time; it may be set back."""
