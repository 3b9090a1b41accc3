"""Whether two sets of times differ by more than noise."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

__all__ = ["Interval", "ratio_interval"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Interval:
    """A ratio of medians and where it lies, with 95 % confidence."""

    ratio: float
    low: float
    high: float


def ratio_interval(
    before: ArrayLike, after: ArrayLike, *, seed: int, draws: int = 1000
) -> Interval:
    """Return the ratio of medians after/before, with its bootstrap interval."""
    rng = np.random.default_rng(seed)
    first, second = (np.asarray(side, float).ravel() for side in (before, after))
    if not (first.size and second.size):
        raise ValueError("no times to compare")
    ratios = _medians(rng, second, draws) / _medians(rng, first, draws)
    low, high = (float(p) for p in np.percentile(ratios, (2.5, 97.5)))
    ratio = float(np.median(second) / np.median(first))
    return Interval(ratio=ratio, low=low, high=high)


def _medians(
    rng: np.random.Generator, times: NDArray[np.float64], draws: int
) -> NDArray[np.float64]:
    picked = rng.integers(0, times.size, (draws, times.size))
    medians: NDArray[np.float64] = np.median(times[picked], axis=1)
    return medians
