"""Amounts spread over time: how much of each key lies in each bin."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]


def spread(
    keys: NDArray[np.int64],
    begin: Floats,
    end: Floats,
    amount: Floats,
    *,
    num_keys: int,
    num_bins: int,
) -> Floats:
    """Return an array of keys by bins: each amount evenly from its begin to its end.

    Times are in bins. What is amassed by the edge k is the sum of rate * (k - begin)
    over what has begun, less the same of what has ended: two running sums, so no
    amount is touched once for every bin that it crosses.
    """
    begin = np.clip(begin, 0.0, num_bins - 1e-6)
    end = np.clip(np.maximum(end, begin + 1e-6), 0.0, float(num_bins))
    rate = amount / (end - begin)
    size = num_keys * (num_bins + 1)
    slope, weight = np.zeros(size), np.zeros(size)
    for times, sign in ((begin, 1.0), (end, -1.0)):
        edge = np.floor(times).astype(np.int64)
        # Within its bin everything is measured from that bin's own edge: small numbers.
        at = keys * (num_bins + 1) + np.minimum(edge, num_bins)
        slope += np.bincount(at, sign * rate, size)
        weight += np.bincount(at, sign * rate * (edge + 1 - times), size)
    slope = slope.reshape(num_keys, num_bins + 1)[:, :num_bins]
    weight = weight.reshape(num_keys, num_bins + 1)[:, :num_bins]
    before = np.cumsum(slope, axis=1) - slope
    return np.maximum(before + weight, 0.0)
