"""Columns cut into groups, and what is in the midst of one: for tables of any kind."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray


def dense_ids(values: NDArray[Any]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return the distinct values, rising, and the place of every value among them.

    Without sorting where values lie close together, as numbers of calls do.
    """
    if not len(values):
        return np.zeros(0, np.int64), np.zeros(0, np.int64)
    low, high = int(values.min()), int(values.max())
    if high - low > 4 * len(values) + 1024:
        distinct, places = np.unique(values, return_inverse=True)
        return distinct.astype(np.int64), places.astype(np.int64)
    shifted = values - np.asarray(low, values.dtype)
    there = np.zeros(high - low + 1, bool)
    there[shifted] = True
    numbers = np.cumsum(there, dtype=np.int64) - 1
    return np.flatnonzero(there) + low, numbers[shifted]


def places_by(group: NDArray[Any], many: int) -> list[NDArray[np.int64]]:
    """Return the rows of each of so many groups, in their order."""
    small = group.astype(np.uint16) if many < 1 << 16 else group
    order = np.argsort(small, kind="stable")
    ends = np.cumsum(np.bincount(group, minlength=many))
    return np.split(order, ends[:-1])


def nearest_rank(share: float, many: int) -> int:
    """Return the place of a quantile among sorted values: one of them, never a mean."""
    return max(0, math.ceil(share * many) - 1)


def ordered(values: NDArray[Any], *places: int) -> tuple[float, ...]:
    """Return those that would stand at these places if values were sorted."""
    parted = np.partition(values, sorted(set(places)))
    return tuple(float(parted[place]) for place in places)


def size_class(nbytes: int) -> int:
    """Return the largest power of two that is not larger; 0: there are no bytes."""
    return 1 << (nbytes.bit_length() - 1) if nbytes > 0 else 0
