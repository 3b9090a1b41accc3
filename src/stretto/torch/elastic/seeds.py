"""Seeds of the random numbers that belong to a rank and a batch of a step."""

from __future__ import annotations

import numpy as np

_MASK = (1 << 64) - 1
_AHEAD = 256


class Seeds:
    """Those of a job, mixed for many steps at once: a step then only looks one up."""

    def __init__(self, seed: int) -> None:
        self._seed = int(seed)
        self._rank = self._first = -1
        self._ahead: list[int] = []

    def of(self, rank: int, step: int, nth: int = 0) -> int:
        """Return the seed of a rank's nth batch of a step."""
        at = step - self._first
        if rank == self._rank and 0 <= at < len(self._ahead) and not nth:
            return self._ahead[at]
        if nth:
            return self._mixed(rank, step, nth, 1)[0]
        self._rank, self._first = rank, step
        self._ahead = self._mixed(rank, step, 0, _AHEAD)
        return self._ahead[0]

    def _mixed(self, rank: int, step: int, nth: int, many: int) -> list[int]:
        """Return those of so many steps: every bit of what goes in changes them."""
        start = self._seed * 0x9E3779B97F4A7C15 + rank * 0xBF58476D1CE4E5B9
        start += nth * 0xC2B2AE3D27D4EB4F
        steps = np.arange(step + 1, step + 1 + many).astype(np.uint64)
        x = np.uint64(start & _MASK) ^ steps * np.uint64(0x94D049BB133111EB)
        x = (x ^ x >> np.uint64(31)) * np.uint64(0xD6E8FEB86659FD93)
        found: list[int] = (x ^ x >> np.uint64(32)).tolist()
        return found
