"""The only clock: microseconds that never run backwards, and one that a test sets.

Whatever depends on time takes a `Clock` as an argument, so that it can be simulated.
"""

from __future__ import annotations

import time
from typing import Protocol

__all__ = ["MONOTONIC", "Clock", "MonotonicClock", "VirtualClock"]


class Clock(Protocol):
    """Something that tells the time and can let it pass."""

    def now_us(self) -> float:
        """Return the time in microseconds since some fixed moment."""
        ...

    def sleep_us(self, duration_us: float) -> None:
        """Return when that much time has passed."""
        ...


class MonotonicClock:
    """This machine's clock; ranks on one host read the same one."""

    __slots__ = ()

    def now_us(self) -> float:
        """Return the time in microseconds since some moment before this process."""
        return time.monotonic_ns() / 1e3

    def sleep_us(self, duration_us: float) -> None:
        """Give the processor away for about that long."""
        time.sleep(max(0.0, duration_us) / 1e6)


class VirtualClock:
    """A clock that moves only when told: sleeping on it takes no time."""

    __slots__ = ("_now_us",)

    def __init__(self, now_us: float = 0.0) -> None:
        self._now_us = now_us

    def now_us(self) -> float:
        """Return the time that was set."""
        return self._now_us

    def sleep_us(self, duration_us: float) -> None:
        """Move the clock on, at once."""
        self.advance_us(duration_us)

    def advance_us(self, duration_us: float) -> None:
        """Move the clock on by `duration_us`, which is not negative."""
        if duration_us < 0:
            raise ValueError(f"a clock cannot go back by {-duration_us} us")
        self._now_us += duration_us

    def set_us(self, now_us: float) -> None:
        """Move the clock on to `now_us`, which is not in its past."""
        self.advance_us(now_us - self._now_us)


MONOTONIC = MonotonicClock()
"""The clock of everything that really runs."""
