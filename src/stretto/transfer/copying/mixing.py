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
from stretto.transfer.copying.intrinsics import (
    put8,
    put16,
    put32,
    take8,
    take16,
    take32,
)

_ONE, _TWO, _THREE = np.uint32(0x9E3779B9), np.uint32(0x85EBCA6B), np.uint32(0xC2B2AE35)


@compiled("uint32(uint32)")
def _mix(bits: Any) -> Any:
    """Return 32 bits that depend on all bits of an element."""
    some = np.uint32(np.uint32(bits + _ONE) * _TWO)
    some = np.uint32(some ^ np.uint32(some >> np.uint32(15)))
    some = np.uint32(some * _THREE)
    return np.uint32(some ^ np.uint32(some >> np.uint32(13)))


@compiled("int64(int64,int64,int64)")
def mixed_run(at: int, count: int, size: int) -> int:
    """Return the sum of elements of a size; of 8 bytes, each is two of 4."""
    total = np.uint32(0)
    if size == 1:
        for i in range(count):
            total = np.uint32(total + _mix(take8(at, i)))
    elif size == 2:
        for i in range(count):
            total = np.uint32(total + _mix(take16(at, i)))
    else:
        for i in range(count * (size // 4)):
            total = np.uint32(total + _mix(take32(at, i)))
    return int(total)


@compiled("int64(int64,int64,int64,int64)")
def copied_run(at: int, to: int, count: int, size: int) -> int:
    """Copy elements, and return their sum: in the time of the copy."""
    total = np.uint32(0)
    if size == 1:
        for i in range(count):
            one = take8(at, i)
            put8(to, i, one)
            total = np.uint32(total + _mix(one))
    elif size == 2:
        for i in range(count):
            one = take16(at, i)
            put16(to, i, one)
            total = np.uint32(total + _mix(one))
    else:
        for i in range(count * (size // 4)):
            one = take32(at, i)
            put32(to, i, one)
            total = np.uint32(total + _mix(one))
    return int(total)


@compiled("int64(int64,int64,int64,int64,int64)")
def mixed_runs(at: int, rows: int, step: int, count: int, size: int) -> int:
    """Return the sum of rows of elements that begin `step` bytes apart."""
    total = 0
    for row in range(rows):
        total += mixed_run(at + row * step, count, size)
    return total


def copied(array: NDArray[Any], source: NDArray[Any]) -> int:
    """Copy another array of the type, and return its sum, as 32 bits."""
    if not (array.flags.c_contiguous and source.flags.c_contiguous):
        np.copyto(array, source)
        return mixed(array)
    to, at = array.ctypes.data, source.ctypes.data
    return copied_run(at, to, array.size, array.itemsize) & 0xFFFFFFFF


def mixed(array: NDArray[Any]) -> int:
    """Return the sum of an array's elements, as 32 bits."""
    size = array.itemsize
    if array.flags.c_contiguous:
        found = mixed_run(array.ctypes.data, array.size, size)
    elif array.strides[-1] != size:
        found = mixed(np.ascontiguousarray(array))
    elif array.ndim == 2:
        rows, count = array.shape
        found = mixed_runs(array.ctypes.data, rows, array.strides[0], count, size)
    else:
        found = sum(mixed(part) for part in array)
    return int(found) & 0xFFFFFFFF
