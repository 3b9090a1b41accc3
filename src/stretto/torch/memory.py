"""Memory that peers reach: tensors, registered tensors, and a pool on GPUs.

Calls whose tensors all lie in such memory, at the same place on every rank, are
zero-copy. Memory of the CPU comes from the group; on GPUs other memory can be
registered afterwards, and a pool puts what is made in it into one registered block.
"""

from __future__ import annotations

import atexit
import ctypes
import math
import threading
from collections.abc import Sequence
from numbers import Integral
from typing import Any

import torch

from stretto.errors import CallError
from stretto.fabric.region import FreeRanges
from stretto.torch.faults import both_families
from stretto.torch.registry import communicator
from stretto.torch.untraced import untraced

_ALIGN = 512
"""PyTorch's allocator wants blocks that begin at multiples of so many bytes."""


@untraced
def empty(
    *shape: int | Sequence[int],
    dtype: torch.dtype | None = None,
    device: Any = None,
    group: Any = None,
) -> Any:
    """Return an uninitialised tensor in the group's memory (collective, alike)."""
    comm = communicator(group)
    with both_families():
        sizes, kind = _sizes(shape), _kind(device)
        dtype = torch.get_default_dtype() if dtype is None else dtype
        if not isinstance(dtype, torch.dtype):
            raise CallError(f"empty: dtype={dtype!r}; want a type of torch: torch.int8")
        nbytes = math.prod(sizes) * dtype.itemsize
        raw = comm.empty((max(nbytes, 1),), "uint8", device=kind.type)
    flat = torch.from_numpy(raw) if kind.type == "cpu" else torch.as_tensor(raw)
    return flat[:nbytes].view(dtype).view(sizes)


@untraced
def suspend(group: Any = None) -> None:
    """Give the memory of a group's calls back until `resume` (collective).

    As `Communicator.suspend` does: captured graphs stay valid, what `empty` gave and
    pools hold comes back with it.
    """
    with both_families():
        communicator(group).suspend()


@untraced
def resume(group: Any = None) -> None:
    """Take it again, at the same addresses (collective)."""
    with both_families():
        communicator(group).resume()


def _sizes(shape: Sequence[Any]) -> tuple[int, ...]:
    """Return a shape that was passed as numbers, or as one sequence."""
    alone = len(shape) == 1 and isinstance(shape[0], Sequence)
    given: Sequence[Any] = shape[0] if alone else shape
    sizes = tuple(int(n) for n in given if isinstance(n, Integral) and int(n) >= 0)
    if isinstance(given, str) or len(sizes) != len(given):
        raise CallError(
            f"empty: a shape of {given!r}; want whole numbers, none of them negative"
        )
    return sizes


def _kind(device: Any) -> torch.device:
    """Return where memory is to be: on the CPU, or this rank's GPU."""
    try:
        kind = torch.device("cpu" if device is None else device)
    except (RuntimeError, TypeError) as e:
        raise CallError(f"empty: device={device!r}; want cpu or cuda") from e
    if kind.type not in ("cpu", "cuda"):
        raise CallError(f"empty: device={device!r}; want cpu or cuda")
    if kind.type == "cuda" and kind.index is not None and torch.cuda.is_available():
        here = torch.cuda.current_device()
        if kind.index != here:
            raise CallError(
                f"empty: device={device!r}, and this rank computes on cuda:{here}: "
                f"call torch.cuda.set_device({kind.index}) before, or leave the number "
                f"out"
            )
    return kind


def _tensor(given: Any, verb: str) -> Any:
    if not isinstance(given, torch.Tensor):
        raise CallError(f"{verb}: a {type(given).__name__}; want a tensor on a GPU")
    return given.detach()


@untraced
def register(tensor: Any, *, group: Any = None) -> bool:
    """Let calls on a GPU tensor be zero-copy (collective); False: they stay staged.

    All ranks pass tensors of one size. Memory on the CPU cannot be registered
    afterwards: make it by `empty`.
    """
    with both_families():
        return communicator(group).register(_tensor(tensor, "register"))


@untraced
def deregister(tensor: Any, *, group: Any = None) -> None:
    """Undo `register` (collective); graphs that captured calls on it are void."""
    with both_families():
        communicator(group).deregister(_tensor(tensor, "deregister"))


@untraced
def pool(nbytes: int, *, group: Any = None) -> Any:
    """Return a `torch.cuda.MemPool` over one registered block (collective).

        with torch.cuda.use_mem_pool(stretto.torch.pool(1 << 30)):
            activations = torch.empty(...)

    PyTorch's allocator takes segments of 2 MiB and more from it; when the block is full
    it raises as when a GPU is. Tensors are zero-copy where all ranks make the same ones
    in the same order, so that they lie at equal places.
    """
    if not torch.cuda.is_available():
        raise CallError(
            "stretto.torch.pool is for GPUs; on the CPU take stretto.torch.empty"
        )
    if nbytes <= 0:
        raise CallError(f"pool(nbytes={nbytes}); want how many bytes it is to hold")
    block = empty(nbytes, dtype=torch.uint8, device="cuda", group=group)
    ranges = Ranges(block.data_ptr(), nbytes)

    def allocate(size: int, device: int, stream: int) -> int:
        return ranges.take(size)

    def free(at: int, size: int, device: int, stream: int) -> None:
        if not ranges.is_over:
            ranges.give(at, size)

    calls = _ALLOCATE(allocate), _FREE(free)
    places = (ctypes.cast(call, ctypes.c_void_p).value for call in calls)
    made = torch.cuda.MemPool(torch._C._cuda_customAllocator(*places))
    _kept.append((made, block, calls))  # PyTorch may call them until the process ends
    atexit.register(ranges.end)
    return made


_ALLOCATE = ctypes.CFUNCTYPE(
    ctypes.c_void_p, ctypes.c_ssize_t, ctypes.c_int, ctypes.c_void_p
)
_FREE = ctypes.CFUNCTYPE(
    None, ctypes.c_void_p, ctypes.c_ssize_t, ctypes.c_int, ctypes.c_void_p
)
_kept: list[Any] = []


class Ranges:
    """One block of addresses, given out in parts.

    Which part comes depends on sizes and their order alone, so that ranks that ask for
    the same get the same places.
    """

    def __init__(self, start: int, nbytes: int) -> None:
        first = -(-start // _ALIGN) * _ALIGN
        self._free = FreeRanges(_ALIGN)
        self._free.give(first, start + nbytes - first)
        self._lock = threading.Lock()
        self.is_over = False
        """Whether the interpreter ends: nothing is given back then."""

    def end(self) -> None:
        """Be called by nobody any more: the names that methods use will be gone."""
        self.is_over = True

    def take(self, nbytes: int) -> int:
        """Return where so many bytes begin; 0: there is no such room."""
        with self._lock:
            found = self._free.take(nbytes)
        return found[0] if found else 0

    def give(self, start: int, nbytes: int) -> None:
        """Take back what `take` gave."""
        with self._lock:
            self._free.give(start, self._free.size_of(nbytes))
