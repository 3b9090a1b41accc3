"""All that a call depends on in an array: a short reader for each library.

Calls whose arrays read alike, and are registered or not as before, differ in addresses
alone, and are served without examining them again. So a reader answers in well under a
microsecond, and says nothing of what operands.py would copy or refuse.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any, TypeAlias

import numpy as np

from stretto.arrays.capsules import read_capsule
from stretto.arrays.operands import CPU, GPU
from stretto.arrays.view import CUDA_DEVICE, dense

Reading: TypeAlias = tuple[str, Any, int, int]
"""The executor that an array is for; all that a request looks at; address; bytes."""
Reader: TypeAlias = Callable[[Any], Reading | None]
"""None: the array must be examined, as it is strided, empty or not what it seems."""

_MANAGED = 13
"""Its number of memory that CUDA moves to where it is used."""
_readers: dict[type, Reader] = {}
"""By type, each found once."""


def read_array(array: Any) -> Reading | None:
    """Return what a call looks at in an array, or None when it must be examined."""
    read = _readers.get(type(array))
    if read is None:
        read = _readers[type(array)] = _reader_of(array)
    try:
        found = read(array)
    except (AttributeError, BufferError, KeyError, RuntimeError, TypeError, ValueError):
        return None  # sparse, lazy, or on no device: whoever examines it says why
    return found if found is not None and (found[2] or not found[3]) else None


def place_of(array: Any, alike: Any) -> int | None:
    """Return where an array lies that reads like an earlier one, or None.

    A tensor is only compared, which takes half the time of reading it.
    """
    if _readers.get(type(array)) is _tensor:
        try:
            return _place_of_tensor(array, *alike)
        except (RuntimeError, TypeError):
            return None  # of no memory; or it was no tensor then
    found = read_array(array)
    return found[2] if found is not None and found[1] == alike else None


def _place_of_tensor(tensor: Any, shape: Any, dtype: Any, device: Any) -> int | None:
    if tensor.dtype != dtype or tensor.shape != shape or tensor.device != device:
        return None
    if not tensor.is_contiguous() or tensor.is_conj() or tensor.is_neg():
        return None
    return tensor.data_ptr() or None


def _reader_of(array: Any) -> Reader:
    kind = type(array)
    library = kind.__module__.partition(".")[0]
    torch: Any = sys.modules.get("torch")
    if torch is not None and issubclass(kind, torch.Tensor):
        plain = kind in (torch.Tensor, torch.nn.Parameter)
        return _tensor if plain else _nothing  # others may be anything, and anywhere
    if issubclass(kind, np.ndarray):
        return _nothing  # on the CPU for us, though some are on a GPU, too
    if library == "cupy":
        return _cupy
    if library == "stretto":
        return _ours
    if hasattr(kind, "__cuda_array_interface__"):
        return _asked if hasattr(kind, "__dlpack_device__") else _interface
    return _capsule if hasattr(kind, "__dlpack__") else _nothing


def _nothing(array: Any) -> None:
    """Answer for what is not known."""


def _tensor(tensor: Any) -> Reading | None:
    """Read a tensor of PyTorch's, on whatever device."""
    if not tensor.is_contiguous() or tensor.is_conj() or tensor.is_neg():
        return None
    at, alike = tensor.data_ptr(), (tensor.shape, tensor.dtype, tensor.device)
    if tensor.is_cuda:
        return GPU, alike, at, tensor.nbytes
    if at % tensor.element_size():
        return None
    return CPU, alike, at, tensor.nbytes


def _cupy(array: Any) -> Reading | None:
    """Read an array of CuPy's; its interface dictionary would take microseconds."""
    if not array.flags.c_contiguous:
        return None
    memory = array.data
    alike = array.shape, array.dtype, memory.device_id
    return GPU, alike, int(memory.ptr), array.nbytes


def _ours(array: Any) -> Reading:
    """Read an array of `comm.empty()`: it is contiguous, and stays as it was made."""
    return GPU, array.alike, array.pointer, array.nbytes


def _interface(array: Any) -> Reading | None:
    """Read what has `__cuda_array_interface__`, as Numba's arrays do."""
    face = array.__cuda_array_interface__
    start, nbytes, packed = dense(face)
    if not packed:
        return None
    kind = getattr(array, "dtype", None)  # of several types a typestr says V1
    alike = tuple(face["shape"]), face["typestr"], kind, face["data"][1]
    return GPU, alike, start, nbytes


def _asked(array: Any) -> Reading | None:
    """Read what has that interface, and says by DLPack on which device it lies."""
    device = tuple(map(int, array.__dlpack_device__()))
    found = _interface(array)
    if found is None or device[0] not in (CUDA_DEVICE, _MANAGED):
        return None
    return found[0], (found[1], device), *found[2:]


def _capsule(array: Any) -> Reading | None:
    """Read what speaks DLPack alone."""
    if array.__dlpack_device__()[0] != CUDA_DEVICE:
        return None
    found = read_capsule(array)
    if not found.contiguous:
        return None
    return GPU, (found.shape, found.dtype, found.device), found.start, found.nbytes
