"""Ranges of addresses that ended sessions keep: reserved, and without memory.

A graph that was captured in such a session has these addresses. While nothing lies
there, its replay faults; else it would write into what came to lie there later.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Iterable

MOST_LEFT = 256
"""Ranges of sessions that have gone: a quarter of what there are addresses for."""


class LeftRanges:
    """Those of one GPU in this process, the oldest first."""

    def __init__(self) -> None:
        self._starts: deque[int] = deque()
        self._lock = threading.Lock()

    def leave(self, starts: Iterable[int]) -> list[int]:
        """Keep these ranges; return the oldest ones, which are to be freed for them."""
        with self._lock:
            self._starts.extend(starts)
            too_many = len(self._starts) - MOST_LEFT
            return [self._starts.popleft() for _ in range(too_many)]
