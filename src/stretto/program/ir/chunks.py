"""How many elements each chunk of a buffer has: one rule, used by everybody."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

ALIGNMENT = 16
"""Bytes at which chunks start, so that they can be moved by whole vectors."""


def partition(count: int, parts: int, itemsize: int) -> NDArray[np.int64]:
    """Return the sizes of `parts` chunks of `count` elements.

    Chunks are equal and start at multiples of 16 bytes; the last ones may be short or
    empty. Results depend on this (a ring adds each chunk in its own order), so it
    depends on nothing but its arguments.
    """
    unit = max(1, ALIGNMENT // itemsize)
    units = math.ceil(math.ceil(count / parts) / unit)
    size = units * unit
    starts = np.minimum(np.arange(parts + 1, dtype=np.int64) * size, count)
    return np.diff(starts)
