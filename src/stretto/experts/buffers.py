"""Memory for results, used again once nobody has an array in it.

New memory costs more than what is copied there: the system gives it page by page.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

__all__ = ["SpareMemory"]

_MOST = 8
_LEAST = 1 << 16
"""Smaller ones are as quick to make."""
_ONLY_HERE = 3
"""References to a buffer that is in the list, in a variable, and asked about."""


class SpareMemory:
    """A few buffers of any sizes."""

    def __init__(self) -> None:
        """Have none yet."""
        self._all: list[NDArray[np.uint8]] = []

    def empty(self, shape: Sequence[int], dtype: Any) -> Any:
        """Return an array that nobody else has, of unknown elements."""
        kind = np.dtype(dtype)
        nbytes = math.prod(shape) * kind.itemsize
        if nbytes < _LEAST:
            return np.empty(shape, kind)
        for one in self._all:
            if one.size >= nbytes and sys.getrefcount(one) <= _ONLY_HERE:
                return one[:nbytes].view(kind).reshape(shape)
        made = np.empty(nbytes + nbytes // 8, np.uint8)  # the next needs a little more
        self._all.append(made)
        self._all.sort(key=len)
        if len(self._all) > _MOST:
            self._all.pop(0)
        return made[:nbytes].view(kind).reshape(shape)
