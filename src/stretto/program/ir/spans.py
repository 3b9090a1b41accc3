"""A map from intervals of chunks to values: what large programs are followed with."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator
from typing import Generic, TypeVar

V = TypeVar("V")


class Spans(Generic[V]):
    """Disjoint intervals in order, each with a value. Writing replaces."""

    __slots__ = ("_starts", "_stops", "_values")

    def __init__(self) -> None:
        self._starts: list[int] = []
        self._stops: list[int] = []
        self._values: list[V] = []

    def __iter__(self) -> Iterator[tuple[int, int, V]]:
        """Go through (start, stop, value) in order."""
        return zip(self._starts, self._stops, self._values, strict=True)

    def read(self, start: int, stop: int) -> list[tuple[int, int, V]]:
        """Return the pieces within [start, stop), clipped; gaps are left out."""
        starts, stops, values = self._starts, self._stops, self._values
        i = bisect_right(starts, start) - 1
        if i < 0:
            i = 0
        elif stop <= stops[i]:  # within one piece, as mostly
            return [(start, stop, values[i])]
        found = []
        while i < len(starts) and starts[i] < stop:
            a, b = max(start, starts[i]), min(stop, stops[i])
            if a < b:
                found.append((a, b, values[i]))
            i += 1
        return found

    def write(self, start: int, stop: int, value: V) -> None:
        """Give [start, stop) one value, cutting what overlaps it."""
        starts, stops = self._starts, self._stops
        i = bisect_right(starts, start) - 1
        if i >= 0 and starts[i] == start and stops[i] == stop:
            self._values[i] = value
            return
        after = i + 1
        if (i < 0 or stops[i] <= start) and (
            after == len(starts) or stop <= starts[after]
        ):  # it overlaps nothing
            starts.insert(after, start)
            stops.insert(after, stop)
            self._values.insert(after, value)
            return
        self._cut(start)
        self._cut(stop)
        lo = bisect_right(starts, start - 1)
        hi = bisect_right(starts, stop - 1)
        self._starts[lo:hi] = [start]
        self._stops[lo:hi] = [stop]
        self._values[lo:hi] = [value]

    def _cut(self, at: int) -> None:
        i = bisect_right(self._starts, at) - 1
        if i >= 0 and self._starts[i] < at < self._stops[i]:
            self._starts.insert(i + 1, at)
            self._stops.insert(i + 1, self._stops[i])
            self._values.insert(i + 1, self._values[i])
            self._stops[i] = at
