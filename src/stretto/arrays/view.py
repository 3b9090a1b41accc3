"""What an array on a GPU says of itself, whatever library it is of: one view.

Tensors answer `data_ptr`, arrays of CuPy and Numba `__cuda_array_interface__`, all else
DLPack. Nothing is copied, and no stream waits.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from stretto.arrays.capsules import contiguous, read_capsule
from stretto.errors import CallError

CUDA_DEVICE = 2
"""DLPack's number of CUDA devices."""


class ArrayView(NamedTuple):
    """An array as its library tells it."""

    start: int
    nbytes: int
    shape: tuple[int, ...]
    dtype: Any
    """The name of its element type, or NumPy's type."""
    contiguous: bool
    why: str = ""
    """What is said of it where it is not contiguous."""
    strides: tuple[int, ...] = ()
    """Bytes between neighbours along each axis, where it is not contiguous."""


def gpu_view(array: Any) -> ArrayView:
    """Return what an array on a GPU says of itself."""
    if hasattr(array, "data_ptr"):
        name = str(array.dtype).removeprefix("torch.")
        nbytes = array.numel() * array.element_size()
        packed = bool(array.is_contiguous())
        why = "" if packed else "a strided GPU tensor; pass tensor.contiguous()"
        steps = () if packed else tuple(array.stride())
        strides = tuple(int(s) * array.element_size() for s in steps)
        return ArrayView(
            array.data_ptr(), nbytes, tuple(array.shape), name, packed, why, strides
        )
    face = getattr(array, "__cuda_array_interface__", None)
    if face is not None:
        kind = getattr(array, "dtype", None)  # of several types a typestr says V1
        start, nbytes, packed = dense(face)
        why = f"an array of strides {face.get('strides')}; want it contiguous"
        typed = np.dtype(face["typestr"]) if kind is None else kind
        strides = () if packed else tuple(map(int, face["strides"]))
        return ArrayView(
            start, nbytes, tuple(face["shape"]), typed, packed, why, strides
        )
    if not hasattr(array, "__dlpack__"):
        raise CallError(
            f"a {type(array).__name__} is no GPU array; want a CUDA tensor, or "
            "anything with __cuda_array_interface__ or __dlpack__"
        )
    kind = int(array.__dlpack_device__()[0])
    if kind != CUDA_DEVICE:
        raise CallError(f"array on DLPack device {kind}; want a GPU ({CUDA_DEVICE})")
    found = read_capsule(array)
    why = f"a strided {type(array).__name__} on a GPU; want it contiguous"
    size = found.nbytes // max(1, math.prod(found.shape))
    strides = tuple(size * step for step in found.strides)
    return ArrayView(
        found.start, found.nbytes, found.shape, found.dtype, found.contiguous, why,
        strides,
    )  # fmt: skip


def packed_view(array: Any) -> ArrayView:
    """Return the view of an array whose elements lie one after the other."""
    found = gpu_view(array)
    if not found.contiguous:
        raise CallError(found.why)
    return found


def dense(face: Mapping[str, Any]) -> tuple[int, int, bool]:
    """Return what a CUDA array interface says: start, bytes, whether contiguous."""
    shape: Sequence[int] = face["shape"]
    strides = face.get("strides")
    size = face["typestr"][2:]  # of dates it goes on: M8[ns]
    itemsize = int(size if size.isdecimal() else "".join(filter(str.isdigit, size)))
    packed = strides is None or contiguous(shape, strides, itemsize)
    return int(face["data"][0] or 0), math.prod(shape) * itemsize, packed


def pointer(array: Any, ordinal: int | None = None) -> int:
    """Return the address of a contiguous array on the GPU; None has none.

    An address stands for an array that was looked at before. With the `ordinal` of a
    GPU, an array on another one is refused.
    """
    if type(array) is int:
        return array
    if array is None:
        return 0
    if ordinal is not None:
        require_near(array, ordinal)
    data_ptr = getattr(array, "data_ptr", None)
    if data_ptr is not None:
        if not array.is_contiguous():
            raise CallError("tensor is not contiguous; pass tensor.contiguous()")
        return int(data_ptr())
    return packed_view(array).start


def address(array: Any) -> int:
    """Return where a contiguous array begins, on the CPU or a GPU."""
    if isinstance(array, np.ndarray):
        return int(array.__array_interface__["data"][0])
    return pointer(array)


def require_near(array: Any, ordinal: int) -> None:
    """Raise when an array says that it lies on another GPU than this one."""
    asked = getattr(array, "__dlpack_device__", None)
    if asked is None:  # an address, too
        return
    kind, lies = (int(n) for n in asked())
    if kind == CUDA_DEVICE and lies != ordinal:
        raise CallError(
            f"a {type(array).__name__} on GPU {lies}; this rank computes on GPU "
            f"{ordinal}, the one that was current when it first used a GPU: call "
            "torch.cuda.set_device(local_rank) before that, and make arrays there"
        )
