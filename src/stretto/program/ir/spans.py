"""A map from intervals of chunks to values: what large programs are followed with."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence
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
        starts, stops = self._starts, self._stops
        i = bisect_right(starts, start) - 1
        if i < 0:
            i = 0
        elif stop <= stops[i]:  # within one piece, as mostly
            return [(start, stop, self._values[i])]
        elif stops[i] <= start:
            i += 1
        end = bisect_left(starts, stop, i)
        found = list(zip(starts[i:end], stops[i:end], self._values[i:end], strict=True))
        if found:
            a, b, value = found[0]
            found[0] = max(a, start), b, value
            a, b, value = found[-1]
            found[-1] = a, min(b, stop), value
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
        self._replace([start], [stop], [value])

    def write_all(self, pieces: Sequence[tuple[int, int, V]]) -> None:
        """Write pieces, each of which begins where the one before it ends.

        Neighbours among them that have equal values become one.
        """
        starts: list[int] = []
        stops: list[int] = []
        values: list[V] = []
        for start, stop, value in pieces:
            if values and values[-1] == value:
                stops[-1] = stop
                continue
            starts.append(start)
            stops.append(stop)
            values.append(value)
        if len(starts) == 1:
            self.write(starts[0], stops[0], values[0])
        elif starts:
            self._replace(starts, stops, values)

    def _replace(self, starts: list[int], stops: list[int], values: list[V]) -> None:
        self._cut(starts[0])
        self._cut(stops[-1])
        lo = bisect_left(self._starts, starts[0])
        hi = bisect_left(self._starts, stops[-1])
        self._starts[lo:hi] = starts
        self._stops[lo:hi] = stops
        self._values[lo:hi] = values

    def _cut(self, at: int) -> None:
        i = bisect_right(self._starts, at) - 1
        if i >= 0 and self._starts[i] < at < self._stops[i]:
            self._starts.insert(i + 1, at)
            self._stops.insert(i + 1, self._stops[i])
            self._values.insert(i + 1, self._values[i])
            self._stops[i] = at
