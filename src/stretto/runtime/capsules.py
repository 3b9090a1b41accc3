"""What a DLPack capsule says of an array on a GPU, where nothing else says it.

The layout is dlpack.h's, `DLManagedTensor` without a version: what everybody gives who
is not asked for another. Nothing is taken over: the capsule frees what it holds.
"""

from __future__ import annotations

import ctypes
import struct
from typing import Any, NamedTuple

from stretto.errors import CallError

__all__ = ["Capsule", "read_capsule"]

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
    strides = _numbers(steps, ndim) if steps else None
    count, contiguous = 1, True
    for axis in reversed(range(ndim)):
        if strides is not None and shape[axis] != 1 and strides[axis] != count:
            contiguous = False
        count *= shape[axis]
    name = _NAMED.get(code) or _KINDS.get(code, "type {}").format(bits)
    return Capsule(
        dtype=name if lanes == 1 else f"{name} x {lanes}",
        shape=shape,
        start=data + offset if data else 0,
        nbytes=count * bits * lanes // 8,
        contiguous=contiguous or not count,
        device=device,
    )


def _numbers(at: int, count: int) -> tuple[int, ...]:
    return struct.unpack(f"={count}q", ctypes.string_at(at, 8 * count)) if count else ()
