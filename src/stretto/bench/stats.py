"""What is said of a set of times."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike


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
