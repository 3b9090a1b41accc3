"""What a caller passes, as what an executor takes: flat, contiguous, of a known type.

NumPy arrays, CPU tensors, anything with DLPack or the buffer protocol. What is strided,
misaligned or byte-swapped is copied first, and copied back when it was written.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from stretto.arrays.view import address, gpu_view
from stretto.errors import CallError, UnknownNameError
from stretto.program.collectives import (
    DTYPES,
    FLOAT8,
    Array,
    dtype_name,
    storage,
)

CPU, GPU = "cpu", "cuda"
_NAMES: dict[np.dtype[Any], str] = {}
"""Our names of the types met so far: asking a type for its name takes a microsecond."""
_RAW = ("bfloat16", *FLOAT8)
"""Types that NumPy lacks."""
_NO_DISPATCH = "_disabled_torch_dispatch_impl"
"""What stands in PyTorch where a class of tensors does not say what operators do."""
_DLPACK = {1: CPU, 2: GPU, 3: CPU, 13: GPU}
"""Executors by DLPack device: CPU, CUDA, pinned CPU, managed CUDA."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Operand:
    """One argument of a call."""

    given: Any
    """What the caller passed, and gets back."""
    flat: Any
    """What the executor takes: the same memory, or a contiguous copy of it."""
    dtype: str
    shape: tuple[int, ...]
    count: int
    """Its elements."""
    device: str
    view: Array | None = None
    """The memory itself, when `flat` is a copy of it."""
    place: tuple[int, int] | None = None
    """Where it begins, and its bytes, at least 1, when that was read."""
    registered: bool | None = None
    """Whether peers reach all of it, when that was asked."""
    staged: bool = False
    """Whether the executor works on a copy."""

    @property
    def span(self) -> tuple[int, int]:
        """Return the first byte that the executor touches, and the one after."""
        start = address(self.flat) if self.place is None else self.place[0]
        return start, start + self.count * storage(self.dtype).itemsize

    def write_back(self) -> None:
        """Give the caller what was written to the copy."""
        if self.view is not None:
            self.view[...] = self.flat.reshape(self.view.shape)


def operand(
    given: Any,
    what: str,
    *,
    written: bool,
    dtype: str | None,
    registered: bool | None = None,
) -> Operand:
    """Return an argument as an executor takes it; `what` names it in messages."""
    if _device(given) == GPU:
        return _on_gpu(given, what, dtype, registered)
    view, name = host_view(given, what, dtype, swapped=True)
    if written and not view.flags.writeable:
        raise CallError(
            f"{what}: a read-only {type(given).__name__} cannot be written; pass a "
            f"writable array as out="
        )
    stored = DTYPES[name]
    native = view.dtype.isnative
    bits = view.view(stored) if native and view.dtype != stored else view
    if native and view.flags.c_contiguous and view.flags.aligned:
        flat, target = bits.reshape(-1), None
    else:
        flat, target = np.array(bits, stored, order="C").reshape(-1), bits
    return Operand(
        given=given,
        flat=flat,
        dtype=name,
        shape=view.shape,
        count=view.size,
        device=CPU,
        view=target,
        registered=registered,
        staged=target is not None,
    )


def _device(given: Any) -> str:
    if isinstance(given, np.ndarray):
        return CPU
    ask = getattr(given, "__dlpack_device__", None)
    if ask is None:
        return GPU if hasattr(given, "__cuda_array_interface__") else CPU
    try:
        kind = int(ask()[0])
    except (BufferError, RuntimeError, TypeError, ValueError) as e:  # meta, say
        raise CallError(
            f"a {type(given).__name__} on no device that holds elements: {e}; want one "
            f"on a CPU or an NVIDIA GPU"
        ) from e
    if kind not in _DLPACK:
        raise CallError(
            f"a {type(given).__name__} on DLPack device {kind}; want one on a CPU (1) "
            f"or an NVIDIA GPU (2)"
        )
    return _DLPACK[kind]


def on_gpu(given: Any) -> bool:
    """Return whether something is an array on a GPU."""
    return bool(getattr(given, "is_cuda", False)) or _device(given) == GPU


def host_view(
    given: Any, what: str, dtype: str | None = None, *, swapped: bool = False
) -> tuple[Array, str]:
    """Return a NumPy view of host memory, and our name of its element type.

    `dtype` is what the caller says of raw bits. Where it is read as it lies, bytes in
    another order are others: only who says `swapped` gets them, and copies them.
    """
    found, name = _host_view(given, what, dtype)
    if not found.dtype.isnative and not swapped:
        raise CallError(
            f"{what}: elements of {found.dtype}, bytes in another order than this "
            "machine's; pass array.astype(array.dtype.newbyteorder('='))"
        )
    return found, name


def _host_view(given: Any, what: str, dtype: str | None) -> tuple[Array, str]:
    if isinstance(given, np.ndarray):
        plain = given if type(given) is np.ndarray else np.asarray(given)
        return plain, _name(plain.dtype, what, dtype)
    if type(given).__module__ == "torch" or hasattr(given, "data_ptr"):
        view, name = _tensor_view(given, what)
        return view, _renamed(name, dtype, what)
    if hasattr(given, "__dlpack__"):
        try:
            found: Array = np.from_dlpack(given)
        except (BufferError, RuntimeError, TypeError) as e:
            raise CallError(
                f"{what}: a {type(given).__name__} gave no view: {e}"
            ) from e
        return found, _name(found.dtype, what, dtype)
    try:
        seen = np.asarray(memoryview(given))
    except (TypeError, ValueError):
        raise CallError(
            f"{what}: got a {type(given).__name__}; want a NumPy array, a tensor, or "
            f"anything with DLPack or the buffer protocol"
        ) from None
    return seen, _name(seen.dtype, what, dtype)


class _Memory:
    """A CPU tensor's memory, for NumPy; it holds the tensor.

    Not `tensor.numpy()`: that lets the storage never be resized again, which FSDP does.
    """

    __slots__ = ("__array_interface__", "_tensor")

    def __init__(self, tensor: Any, dtype: np.dtype[Any]) -> None:
        self._tensor = tensor
        step = dtype.itemsize
        self.__array_interface__ = {
            "version": 3,
            "data": (tensor.data_ptr(), False),
            "shape": tuple(tensor.shape),
            "strides": tuple(step * stride for stride in tensor.stride()),
            "typestr": dtype.str,
        }


def _tensor_view(given: Any, what: str) -> tuple[Array, str]:
    """Return a CPU tensor's memory, of types that NumPy lacks as raw bits."""
    name = str(given.dtype).removeprefix("torch.")
    if name not in DTYPES:
        raise _unknown(name, what)
    own = getattr(type(given), "__torch_dispatch__", None)
    if getattr(own, "__name__", _NO_DISPATCH) != _NO_DISPATCH:
        raise CallError(
            f"{what}: a {type(given).__name__}, which is no plain memory: what its "
            f"elements are is said by its class; pass a dense tensor"
        )
    try:
        _refuse_lazy(given, what)
        if not given.data_ptr() and given.numel():
            raise _nowhere(given, what)
        return np.asarray(_Memory(given, DTYPES[name])), name
    except (NotImplementedError, RuntimeError, TypeError) as e:
        raise CallError(
            f"{what}: a tensor that has no plain memory: {e}; pass a dense one"
        ) from e


def _name(dtype: np.dtype[Any], what: str, want: str | None) -> str:
    """Return our name of an element type, or what the caller says that it is."""
    known = _NAMES.get(dtype)
    if known is None:
        try:
            known = _NAMES.setdefault(dtype, dtype_name(dtype))
        except UnknownNameError:
            if dtype.type is not np.void or dtype.names is not None:
                raise _unknown(str(dtype), what) from None
    if known is None:
        return _of_raw(dtype, what, want)
    return _renamed(known, want, what)


def _of_raw(dtype: np.dtype[Any], what: str, want: str | None) -> str:
    """Return what the caller says that bytes are which their library has no name for.

    So Numba and NumPy show a bfloat16 of PyTorch's: as |V2.
    """
    of_size = [name for name in _RAW if storage(name).itemsize == dtype.itemsize]
    if want is not None and dtype_name(want) in of_size:
        return want
    if not of_size:
        raise _unknown(str(dtype), what)
    got = "no dtype" if want is None else f"dtype={want!r}"
    raise CallError(
        f"{what}: elements of type {dtype}, raw bytes, and {got} to say what they are; "
        f"pass {' or '.join(f'dtype={name!r}' for name in of_size)}"
    )


def _unknown(name: str, what: str) -> CallError:
    return CallError(
        f"{what}: elements of type {name}; want one of {', '.join(sorted(DTYPES))}"
    )


def _renamed(name: str, dtype: str | None, what: str) -> str:
    """Return the type that the caller says raw bits are of."""
    if dtype is None:
        return name
    if not isinstance(dtype, str) and not hasattr(dtype, "name"):
        raise CallError(f"{what}: dtype={str(dtype)[:40]!r}; want the name of a type")
    want = dtype_name(dtype)
    if want != name and (storage(want) != storage(name)):
        raise CallError(
            f"{what}: dtype={dtype!r} for elements of type {name}; want their own "
            f"type, bfloat16 for raw uint16, or a float8 for raw uint8"
        )
    return want


def _on_gpu(
    given: Any, what: str, dtype: str | None, registered: bool | None
) -> Operand:
    tensor = hasattr(given, "data_ptr")
    if tensor and given.is_contiguous():
        _refuse_lazy(given, what)
    seen = gpu_view(given)
    if not seen.contiguous:
        raise CallError(f"{what}: {seen.why}")
    if isinstance(seen.dtype, np.dtype):
        if not seen.dtype.isnative:
            raise _unknown(str(seen.dtype), what)
        name = _name(seen.dtype, what, dtype)
    else:
        if seen.dtype not in DTYPES:
            raise _unknown(seen.dtype, what)
        name = seen.dtype if dtype is None else _renamed(seen.dtype, dtype, what)
    if not seen.start and seen.nbytes:
        raise _nowhere(given, what)
    place = seen.start, max(1, seen.nbytes)
    return Operand(
        given=given,
        flat=given,
        dtype=name,
        shape=seen.shape,
        count=math.prod(seen.shape),
        device=GPU,
        place=place,
        registered=registered,
    )


def _nowhere(given: Any, what: str) -> CallError:
    return CallError(
        f"{what}: a {type(given).__name__} with elements and no memory to hold them: "
        f"its storage was resized to nothing, or it stands for other tensors; pass one "
        f"that has its own"
    )


def _refuse_lazy(tensor: Any, what: str) -> None:
    """Raise where memory does not hold the elements, but their conjugates."""
    lazy = (getattr(tensor, name, None) for name in ("is_conj", "is_neg"))
    if any(ask is not None and ask() for ask in lazy):
        raise CallError(
            f"{what}: a tensor that is conjugated or negated when it is read; pass "
            f"tensor.resolve_conj().resolve_neg()"
        )


def fresh(like: Operand, shape: Sequence[int]) -> Any:
    """Return a new array of that shape, of the same kind as an operand."""
    given = like.given
    if type(given).__module__ == "torch" or hasattr(given, "new_empty"):
        return given.detach().new_empty(tuple(shape))
    if isinstance(given, np.ndarray):
        return np.empty(shape, given.dtype.newbyteorder("="))
    if like.device == CPU:
        return np.empty(shape, storage(like.dtype))
    raise CallError(
        f"a result for a {type(given).__name__} on a GPU; pass out=, of shape "
        f"{tuple(shape)}"
    )
