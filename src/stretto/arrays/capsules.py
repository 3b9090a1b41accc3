"""What a DLPack capsule says of an array on a GPU, where nothing else says it.

The layout is dlpack.h's, `DLManagedTensor` without a version: what everybody gives who
is not asked for another. Nothing is taken over: the capsule frees what it holds.
"""

from __future__ import annotations

import ctypes
import functools
import math
import struct
from collections.abc import Sequence
from typing import Any, NamedTuple

from stretto.errors import CallError

_TENSOR = struct.Struct("=QiiiBBHQQQ")
_KINDS = {0: "int{}", 1: "uint{}", 2: "float{}", 4: "bfloat{}", 5: "complex{}"}
_NAMED = {6: "bool", 10: "float8_e4m3fn", 12: "float8_e5m2"}
_open = ctypes.pythonapi.PyCapsule_GetPointer
_open.restype = ctypes.c_void_p
_open.argtypes = (ctypes.py_object, ctypes.c_char_p)


class Capsule(NamedTuple):
    """An array as DLPack tells it."""

    dtype: str
    """Our name of its element type, or one that we do not know."""
    shape: tuple[int, ...]
    start: int
    nbytes: int
    contiguous: bool
    device: int
    strides: tuple[int, ...] = ()
    """Elements between neighbours along each axis; none where it is contiguous."""


def read_capsule(array: Any) -> Capsule:
    """Return what an array's capsule says; no stream waits for another."""
    capsule = array.__dlpack__(stream=-1)
    at = _open(capsule, b"dltensor")
    if not at:
        raise CallError(f"a {type(array).__name__} whose DLPack capsule is empty")
    data, _, device, ndim, code, bits, lanes, sizes, steps, offset = _TENSOR.unpack(
        ctypes.string_at(at, _TENSOR.size)
    )
    shape = _numbers(sizes, ndim)
    strides = _numbers(steps, ndim) if steps else ()
    dense = not steps or contiguous(shape, strides)
    return Capsule(
        _name(code, bits, lanes),
        shape,
        data + offset if data else 0,
        math.prod(shape) * bits * lanes // 8,
        dense,
        device,
        () if dense else strides,
    )


@functools.cache
def _name(code: int, bits: int, lanes: int) -> str:
    name = _NAMED.get(code) or _KINDS.get(code, "type {}").format(bits)
    return name if lanes == 1 else f"{name} x {lanes}"


def contiguous(shape: Sequence[int], strides: Sequence[int], step: int = 1) -> bool:
    """Return whether elements lie one after the other, so far from their neighbours.

    Axes of one element may say anything.
    """
    for size, stride in zip(reversed(shape), reversed(strides), strict=True):
        if size != 1 and stride != step:
            return not math.prod(shape)
        step *= size
    return True


def _numbers(at: int, count: int) -> tuple[int, ...]:
    return _row(count).unpack(ctypes.string_at(at, 8 * count)) if count else ()


@functools.cache
def _row(count: int) -> struct.Struct:
    return struct.Struct(f"={count}q")
