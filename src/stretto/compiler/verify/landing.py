"""When puts to another host have landed, and who knows.

A far put is issued, and its lane goes on; it lands some time later. One thing orders
that: when the rank that it goes to sees a later signal that releases, sent to it by the
same lane, the put has landed. Not a signal of another lane, nor one to another rank,
nor a chain through a third: what a lane knows of others is no news of their puts.

So a landing is known to begin with by the lane that waited for that signal, and later
by whoever knows that this wait has happened.
"""

from __future__ import annotations

from collections import defaultdict
from typing import NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from stretto.compiler.verify.clocks import VectorClock

Way: TypeAlias = tuple[int, int]
"""A lane that puts, and the rank on another host that it puts to."""


class _Landing(NamedTuple):
    """By `time` of `lane`, the puts of a way up to `issued` had landed."""

    issued: int
    lane: int
    time: int


class Landings:
    """All waits that say that puts have landed."""

    def __init__(self) -> None:
        self._of: dict[Way, list[_Landing]] = defaultdict(list)

    def note(self, lane: int, time: int, way: Way, told: VectorClock) -> None:
        """Remember that a lane has waited for what a way's lane told its rank."""
        issued = int(told.data[way[0]])
        if not issued:  # it orders what was read, and says nothing of what was put
            return
        self._of[way].append(_Landing(issued, lane, time))

    def known(self, times: NDArray[np.int32], way: Way, issued: int) -> bool:
        """Return whether who knows these times of all lanes knows of a landing."""
        return any(
            landing.issued >= issued and times[landing.lane] >= landing.time
            for landing in self._of.get(way, ())
        )
