"""A sum of elements that does not depend on their order, compiled.

Each element is mixed by itself, and what comes out is added up. So the sum of a tensor
is that of its parts, however it is cut, and whoever holds them: who has all parts can
compare with who had the whole. That each element is at its place, plans prove.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from stretto.fabric.jit.atomics import compiled
from stretto.transfer.copying.intrinsics import load8, load16, load32

_ONE, _TWO, _THREE = np.uint32(0x9E3779B9), np.uint32(0x85EBCA6B), np.uint32(0xC2B2AE35)


@compiled("uint32(uint32)")
def _mix(bits: Any) -> Any:
    """Return 32 bits that depend on all bits of an element."""
    some = np.uint32(np.uint32(bits + _ONE) * _TWO)
    some = np.uint32(some ^ np.uint32(some >> np.uint32(15)))
    some = np.uint32(some * _THREE)
    return np.uint32(some ^ np.uint32(some >> np.uint32(13)))


@compiled("int64(int64,int64,int64,int64,int64)")
def mixed_runs(at: int, rows: int, step: int, count: int, size: int) -> int:
    """Return the sum of `rows` runs of `count` elements of `size` bytes.

    Elements of 8 bytes are two of 4 each.
    """
    total = np.uint32(0)
    for row in range(rows):
        begin = at + row * step
        if size == 1:
            for i in range(count):
                total = np.uint32(total + _mix(np.uint32(load8(begin + i))))
        elif size == 2:
            for i in range(count):
                total = np.uint32(total + _mix(np.uint32(load16(begin + 2 * i))))
        else:
            for i in range(count * (size // 4)):
                total = np.uint32(total + _mix(np.uint32(load32(begin + 4 * i))))
    return int(total)


def mixed(array: NDArray[Any]) -> int:
    """Return the sum of an array's elements, as 32 bits."""
    size = array.itemsize
    if array.flags.c_contiguous:
        found = mixed_runs(array.ctypes.data, 1, 0, array.size, size)
    elif array.strides[-1] != size:
        found = mixed(np.ascontiguousarray(array))
    elif array.ndim == 2:
        rows, count = array.shape
        found = mixed_runs(array.ctypes.data, rows, array.strides[0], count, size)
    else:
        found = sum(mixed(part) for part in array)
    return int(found) & 0xFFFFFFFF
