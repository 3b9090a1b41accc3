"""Which parts of a slab are in use: the same answer on every rank.

Freeing must not be a hidden collective (garbage is collected at different times on
different ranks), so a release is only noted. It takes effect when all ranks have
noted it: the next allocation, which is collective anyway, exchanges the notes.
"""

from __future__ import annotations

import bisect
from collections.abc import Iterable

from stretto.errors import CallError

__all__ = ["GRAIN", "Arena"]

GRAIN = 512
"""Bytes that every allocation is a multiple of, and is aligned to."""


class Arena:
    """Allocations as offsets; lowest free offset first."""

    def __init__(self) -> None:
        self._free: list[tuple[int, int]] = []
        self._live: dict[int, int] = {}
        self._noted: list[int] = []
        self.capacity = 0

    def grow(self, start: int, nbytes: int) -> None:
        """Add free space."""
        self.capacity += nbytes
        self._insert(start, nbytes)

    def allocate(self, nbytes: int) -> int | None:
        """Return the offset of so many bytes, or None when they do not fit."""
        size = max(1, -(-nbytes // GRAIN)) * GRAIN
        for index, (start, room) in enumerate(self._free):
            if room >= size:
                if room == size:
                    del self._free[index]
                else:
                    self._free[index] = (start + size, room - size)
                self._live[start] = size
                return start
        return None

    def size(self, start: int) -> int:
        """Return the bytes of a live allocation."""
        return self._live[start]

    def note(self, start: int) -> None:
        """Note that this rank no longer uses an allocation; any thread may."""
        self._noted.append(start)

    def noted(self) -> tuple[int, ...]:
        """Return what this rank has noted and not yet been granted."""
        return tuple(sorted(self._noted))

    def settle(self, notes: Iterable[Iterable[int]]) -> None:
        """Free what every rank has noted."""
        everyone = [set(n) for n in notes]
        agreed = set.intersection(*everyone) if everyone else set()
        for start in sorted(agreed):
            self._noted.remove(start)
            size = self._live.pop(start, None)
            if size is None:
                raise CallError(f"offset {start}: released twice; release it once")
            self._insert(start, size)

    def _insert(self, start: int, nbytes: int) -> None:
        at = bisect.bisect(self._free, (start, 0))
        if at < len(self._free) and start + nbytes == self._free[at][0]:
            nbytes += self._free.pop(at)[1]
        if at and sum(self._free[at - 1]) == start:
            start, before = self._free[at - 1]
            nbytes += before
            at -= 1
            del self._free[at]
        self._free.insert(at, (start, nbytes))
