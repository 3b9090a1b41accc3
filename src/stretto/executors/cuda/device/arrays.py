"""Arrays of our own memory on a GPU, as other libraries read them without a copy."""

from __future__ import annotations

import ctypes
import math
import weakref
from collections.abc import Callable, Sequence
from typing import Any

from stretto.arrays import CUDA_DEVICE
from stretto.program.elements import storage


class _DLTensor(ctypes.Structure):
    _fields_ = (
        ("data", ctypes.c_void_p),
        ("device_type", ctypes.c_int32),
        ("device_id", ctypes.c_int32),
        ("ndim", ctypes.c_int32),
        ("code", ctypes.c_uint8),
        ("bits", ctypes.c_uint8),
        ("lanes", ctypes.c_uint16),
        ("shape", ctypes.POINTER(ctypes.c_int64)),
        ("strides", ctypes.POINTER(ctypes.c_int64)),
        ("byte_offset", ctypes.c_uint64),
    )


class _DLManagedTensor(ctypes.Structure):
    pass


_Deleter = ctypes.CFUNCTYPE(None, ctypes.POINTER(_DLManagedTensor))
_DLManagedTensor._fields_ = (
    ("tensor", _DLTensor),
    ("context", ctypes.c_void_p),
    ("deleter", _Deleter),
)

_new_capsule = ctypes.pythonapi.PyCapsule_New
_new_capsule.restype = ctypes.py_object
_new_capsule.argtypes = (ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p)


_is_capsule = ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_char_p)(
    ("PyCapsule_IsValid", ctypes.pythonapi)
)
_held_by = ctypes.PYFUNCTYPE(ctypes.c_void_p, ctypes.c_void_p, ctypes.c_char_p)(
    ("PyCapsule_GetPointer", ctypes.pythonapi)
)

_CODES = {"i": 0, "u": 1, "f": 2, "c": 5, "b": 6}
_BFLOAT = 4
_exported: dict[int, tuple[Any, ...]] = {}
"""What consumers of our capsules still hold, by the address of its record."""


def _forget(managed: Any) -> None:
    _exported.pop(ctypes.addressof(managed.contents), None)


def _drop(capsule: int) -> None:
    """Forget what a capsule held that nobody took over; who takes it renames it."""
    if _is_capsule(capsule, b"dltensor"):
        _exported.pop(_held_by(capsule, b"dltensor"), None)


_forget_c = _Deleter(_forget)
_drop_c = ctypes.PYFUNCTYPE(None, ctypes.c_void_p)(_drop)
for _called in (_forget_c, _drop_c):  # tensors may outlive this module
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(_called))


class DeviceArray:
    """Registered GPU memory: contiguous, zero-copy for the session that made it."""

    def __init__(
        self,
        start: int,
        shape: Sequence[int],
        dtype: str,
        ordinal: int,
        release: Callable[[], None],
    ) -> None:
        self.pointer = start
        self.shape = tuple(shape)
        self.dtype = dtype
        self.itemsize = storage(dtype).itemsize
        self.nbytes = math.prod(self.shape) * self.itemsize
        self.alike = self.shape, dtype, ordinal
        """All that calls look at but where it lies."""
        self._ordinal = ordinal
        weakref.finalize(self, release)

    def __repr__(self) -> str:
        """Return what it is, without its contents."""
        return f"DeviceArray(shape={self.shape}, dtype={self.dtype!r})"

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        """Return the description that CuPy, Numba and torch read."""
        return {
            "shape": self.shape,
            "typestr": storage(self.dtype).str,
            "data": (self.pointer, False),
            "strides": None,
            "version": 3,
            "stream": None,
        }

    def __dlpack_device__(self) -> tuple[int, int]:
        """Return the DLPack device."""
        return CUDA_DEVICE, self._ordinal

    def __dlpack__(self, **_: Any) -> Any:
        """Return a DLPack capsule; bfloat16 keeps its name, unlike above."""
        kind = storage(self.dtype).kind
        managed = _DLManagedTensor()
        shape = (ctypes.c_int64 * max(1, len(self.shape)))(*self.shape)
        tensor = managed.tensor
        tensor.data = self.pointer
        tensor.device_type, tensor.device_id = CUDA_DEVICE, self._ordinal
        tensor.ndim = len(self.shape)
        tensor.code = _BFLOAT if self.dtype == "bfloat16" else _CODES[kind]
        tensor.bits, tensor.lanes = self.itemsize * 8, 1
        tensor.shape = ctypes.cast(shape, ctypes.POINTER(ctypes.c_int64))
        managed.deleter = _forget_c
        address = ctypes.addressof(managed)
        _exported[address] = (managed, shape, self)
        return _new_capsule(address, b"dltensor", _drop_c)
