"""What is left of a budget, and what was left out for want of it.

Only the clock of the computer is asked here. As long as nothing is left out, it has no
say in what is found.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable

__all__ = ["OutOfTimeError", "SearchClock"]


class OutOfTimeError(Exception):
    """A way was given up in the middle; never leaves this room."""


now: Callable[[], float] = time.monotonic
"""What deadlines are read from; who shares a computer may count its own time."""


class SearchClock:
    """A deadline, and what it cut."""

    def __init__(self, seconds: float | None, cut: list[str] | None = None) -> None:
        self._end = math.inf if seconds is None else now() + seconds
        self.cut: list[str] = [] if cut is None else cut
        """What was left out or given up, in words."""

        self.interrupted = False
        """Whether Ctrl-C ended it, and not the deadline."""

    @property
    def limited(self) -> bool:
        """Return whether there is a deadline at all."""
        return self._end < math.inf

    @property
    def left(self) -> float:
        """Return the seconds until the deadline, not below 0."""
        return max(0.0, self._end - now())

    def over(self, what: str) -> bool:
        """Return whether the time is up; then `what` is left out."""
        if self.left > 0:
            return False
        self.skip(what)
        return True

    def skip(self, what: str) -> None:
        """Note what is left out."""
        if what not in self.cut:
            self.cut.append(what)

    def check(self) -> None:
        """Raise when the time is up."""
        if self.left <= 0:
            raise OutOfTimeError

    def part(self, share: float) -> SearchClock:
        """Return a clock for so much of what is left."""
        return SearchClock(self.left * share if self.limited else None, self.cut)
