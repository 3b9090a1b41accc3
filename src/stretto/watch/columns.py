"""Columns cut into groups, and what is in the midst of one: for tables of any kind."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

__all__ = ["nearest_rank", "ordered", "places_by", "size_class"]


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
