"""Links that are looked at in Python: their hops have no compiled calls.

Some of these hops wake nobody. Then the engine's thread naps, ever longer while nothing
comes, and ends a nap when something else stirs.
"""

from __future__ import annotations

import math
import os
import select
import time
from collections.abc import Sequence

from stretto.transfer.links.link import Link

_HOT_NAP_S = 0.0002
"""While others look, its thread need not."""
_FINE_S = 0.002
"""Shorter waits are not for `poll`, which counts in milliseconds."""
_MOST_SELECTED = 1024
"""Descriptors below this number are for `select`, which counts in microseconds."""


class LinkWatch:
    """See the module; made anew whenever links come or go."""

    def __init__(self, links: Sequence[Link]) -> None:
        found = [(link, link.by_python) for link in links]
        self.links = tuple((link, hop) for link, hop in found if hop is not None)
        self._napping = tuple(hop for _, hop in self.links if hop.naps)
        hops = [link.hop for link in links if link.hop is not None]
        self._tended_s = min((hop.tended_s for hop in hops), default=math.inf)

    def __bool__(self) -> bool:
        """Return whether there are any."""
        return bool(self.links)

    def look(self, seconds: float) -> bool:
        """Look for so long; return whether anything has come, or moved."""
        until = time.monotonic() + seconds
        while True:
            for link, hop in self.links:
                if hop.progress() or link.has_records:
                    return True
            if time.monotonic() >= until:
                return False
            os.sched_yield()  # it may be the peer that wants this core

    def nap_s(self, now: float, wait: float, *, is_hot: bool) -> float:
        """Return how long to sleep at most, where `wait` would do for all others."""
        wait = min(wait, self._tended_s)
        naps = [hop.nap_s(now) for hop in self._napping]
        if not naps:
            return wait
        nap = max(min(naps), _HOT_NAP_S if is_hot else 0.0)
        if not nap:
            os.sched_yield()  # as in `look`
        return min(nap, wait)

    def is_fine(self, wait: float) -> bool:
        """Return whether a wait is for `doze`."""
        return bool(self._napping) and 0 < wait < _FINE_S


def doze(number: int, seconds: float) -> None:
    """Sleep for less than a millisecond, or until a descriptor turns readable."""
    if number < _MOST_SELECTED:
        select.select([number], [], [], seconds)  # noqa: TID251 - below a millisecond
    else:
        time.sleep(seconds)
