"""Iterations as circles: what jobs ask of a link over one turn of a common circle.

A job that turns r times while the common circle turns once is on it r times, so its
shift matters up to one of its own turns. Circles are cut into equal parts; what a job
asks in a part is its mean there.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

__all__ = ["LEAST_PARTS", "Arc", "Circle", "blur", "demand", "unified"]

Arc = tuple[float, float, float]
"""Begin and length in ms, and Gb/s."""
LEAST_PARTS = 360
_MOST_PARTS = 2880
MOST_TURNS, MOST_STRETCH = 24, 0.05
_FADES = 0.1


@dataclass(frozen=True, slots=True, kw_only=True)
class Circle:
    """A common circle of several jobs, in their order."""

    perimeter_ms: float
    turns: tuple[int, ...]
    stretch: float
    """By which share, at most, a job's turn was made longer to fit: the error."""
    parts: int

    def period_ms(self, job: int) -> float:
        """Return how long a job's turn takes on it."""
        return self.perimeter_ms / self.turns[job]


def unified(
    periods_ms: Sequence[float],
    *,
    least_parts: int = LEAST_PARTS,
    most_stretch: float = MOST_STRETCH,
) -> Circle | None:
    """Return the common circle of these periods; None when none is within bounds.

    The least common multiple of what was measured would be beyond all bounds, so turns
    are made up to `most_stretch` longer: the fewest turns of the slowest job that make
    the least of that. 101 and 103 ms become two circles of 103.
    """
    longest = max(periods_ms)
    best: tuple[float, int, tuple[int, ...]] | None = None
    for turns_of_longest in range(1, MOST_TURNS + 1):
        perimeter = turns_of_longest * longest
        turns = tuple(math.floor(perimeter / p * (1 + 1e-9)) for p in periods_ms)
        stretch = max(
            perimeter / n / p - 1 for n, p in zip(turns, periods_ms, strict=True)
        )
        if math.lcm(*turns) > _MOST_PARTS or stretch > most_stretch:
            continue
        if best is None or stretch < best[0] * 0.8 - 1e-6:
            best = max(0.0, stretch), turns_of_longest, turns
    if best is None:
        return None
    stretch, times, turns = best
    common = math.lcm(*turns)
    parts = common * math.ceil(least_parts / common)
    return Circle(
        perimeter_ms=times * longest, turns=turns, stretch=stretch, parts=parts
    )


def demand(circle: Circle, job: int, arcs: Sequence[Arc]) -> Any:
    """Return what a job asks of a link in each part, in Gb/s, not shifted."""
    turns = circle.turns[job]
    size = circle.parts // turns
    part_ms = circle.perimeter_ms / circle.parts
    edges = np.zeros(size + 1)
    for begin, length, rate in arcs:
        start, end = begin / part_ms, (begin + length) / part_ms
        for turn in (-1, 0):  # an arc may reach over the end of the turn
            low, high = start + turn * size, end + turn * size
            edges += np.clip(np.arange(size + 1), low, high) * rate
    return np.tile(np.diff(edges), turns)


def blur(ask: Any, turns: int) -> Any:
    """Return what is asked, fading out over some of a turn on either side."""
    far = np.minimum(np.arange(len(ask)), len(ask) - np.arange(len(ask)))
    kernel = np.exp(-far / (_FADES * len(ask) / turns))
    mixed = np.fft.ifft(np.fft.fft(ask) * np.fft.fft(kernel / kernel.sum()))
    return np.real(mixed)
