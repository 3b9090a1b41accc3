"""What is said of a set of times, and whether two sets differ by more than noise."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray


@dataclass(frozen=True, slots=True, kw_only=True)
class TimeSummary:
    """The times of a call, over batches: what the loop of all ranks takes."""

    min_us: float
    p50_us: float
    p95_us: float
    p99_us: float
    max_us: float
    slowest_rank: int
    """The rank whose own median is the largest."""


def summarise(by_rank: ArrayLike, whole: ArrayLike = ()) -> TimeSummary:
    """Return the summary of times, one row a rank and one column a batch.

    `whole` has the batches from the first rank in to the last rank out, where that is
    known; else a batch takes as long as its slowest rank.
    """
    times = np.atleast_2d(np.asarray(by_rank, float))
    batches = np.asarray(whole, float)
    batches = batches if batches.size else times.max(axis=0)
    own = np.median(times, axis=1)
    p50, p95, p99 = (float(p) for p in np.percentile(batches, (50, 95, 99)))
    return TimeSummary(
        min_us=float(batches.min()),
        p50_us=p50,
        p95_us=p95,
        p99_us=p99,
        max_us=float(batches.max()),
        slowest_rank=int(own.argmax()),
    )


def geomean(ratios: Iterable[float]) -> float | None:
    """Return the geometric mean of positive numbers; None when there are none."""
    logs = [math.log(r) for r in ratios if r > 0 and math.isfinite(r)]
    return math.exp(sum(logs) / len(logs)) if logs else None


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
