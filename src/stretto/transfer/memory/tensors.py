"""What callers hand in, as memory: where it lies, how, and whether it fits a layout."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from stretto.arrays import gpu_view, host_view, on_gpu
from stretto.errors import CallError, LayoutError
from stretto.program.collectives import storage
from stretto.transfer.layouts import Layout

ARENA, MEMORY, GPU, STORE = "arena", "memory", "gpu", "store"


def addresses_of(
    given: Any, layout: Layout | str | None, what: str, *, written: bool,
    is_exact: bool = False,
) -> tuple[Layout, list[int], list[int], str, object]:  # fmt: skip
    """Return the layout of tensors, their addresses and bytes, and their kind.

    What comes last keeps them there. The shape must be the layout's, or flat and as
    large; distances are the tensor's.
    A layout that the caller has named may take a part of a flat buffer, of whatever
    type; what is `is_exact` has as many elements as the layout, and of its type.
    """
    several = isinstance(given, (list, tuple))
    tensors = list(given) if several else [given]
    if not tensors:
        raise CallError(f"{what}: no tensors")
    seen = [_seen(one, what, written=written) for one in tensors]
    if layout is None:
        if several:
            raise CallError(f"{what}: {len(tensors)} tensors and no layout; pass one")
        shape, dtype = seen[0].shape, seen[0].dtype
        layout = Layout(f"N={max(1, math.prod(shape))} {dtype}")
        if not shape or not math.prod(shape):
            raise CallError(f"{what}: there is nothing in it")
    elif not isinstance(layout, Layout):
        layout = Layout(layout)
    count = len(tensors)
    unlike = {(one.shape, one.strides, one.dtype, one.nbytes): one for one in seen}
    fitted = [
        _fitted(layout, o, what, count, is_exact=is_exact) for o in unlike.values()
    ]
    if len(set(fitted)) > 1:
        raise LayoutError(f"{what}: its tensors lie differently in memory")
    on = {one.device for one in seen}
    if len(on) > 1:
        raise CallError(f"{what}: tensors on several devices; want one")
    kind = MEMORY if on == {""} else GPU
    addresses, sizes = [o.address for o in seen], [o.nbytes for o in seen]
    return fitted[0], addresses, sizes, kind, [o.holds for o in seen]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Seen:
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    dtype: str
    address: int
    nbytes: int
    device: str
    holds: object = None
    """What keeps the memory where it is: a bytearray that is looked at cannot grow."""


def _seen(given: Any, what: str, *, written: bool) -> _Seen:
    if on_gpu(given):
        found = gpu_view(given)
        size = found.nbytes // max(1, math.prod(found.shape))
        axes = range(len(found.shape))
        dense = tuple(size * math.prod(found.shape[i + 1 :]) for i in axes)
        strides = dense if found.contiguous else found.strides
        if len(strides) != len(dense) or min((0, *strides)) < 0:
            raise CallError(f"{what}: {found.why or 'strides that it does not tell'}")
        last = sum((n - 1) * s for n, s in zip(found.shape, strides, strict=True))
        name = str(getattr(found.dtype, "name", found.dtype))
        if not getattr(found.dtype, "isnative", True):
            raise CallError(f"{what}: elements of {found.dtype}; want the GPU's order")
        return _Seen(
            shape=found.shape, strides=strides, dtype=name, address=found.start,
            nbytes=last + size if found.nbytes else 0, device="cuda",
        )  # fmt: skip
    if isinstance(given, (bytes, bytearray, memoryview)):
        given = np.frombuffer(given, np.uint8)
    array, dtype = host_view(given, what)
    if written and not array.flags.writeable:
        raise CallError(f"{what}: a read-only {type(given).__name__}")
    last = sum((n - 1) * s for n, s in zip(array.shape, array.strides, strict=True))
    if any(s < 0 for s in array.strides):
        raise CallError(f"{what}: an array that runs backwards; pass a copy")
    return _Seen(
        shape=array.shape, strides=array.strides, dtype=dtype,
        address=int(array.ctypes.data), nbytes=last + array.itemsize, device="",
        holds=array,
    )  # fmt: skip


def _fitted(
    layout: Layout, seen: _Seen, what: str, count: int, *, is_exact: bool
) -> Layout:
    """Return a layout at the distances of one of so many tensors that has its shape."""
    if layout.num_parts != count:
        raise LayoutError(f"{what}: {count} tensors; {layout} is of {layout.num_parts}")
    if is_exact:  # what NumPy has no type for is passed as its bits
        same = seen.dtype in (layout.dtype, layout.storage.name)
    else:
        same = layout.itemsize == storage(seen.dtype).itemsize
    raw = seen.dtype in ("uint8", "int8") and len(seen.shape) == 1
    if not same and not raw:
        raise LayoutError(
            f"{what}: elements of {seen.dtype}, of shape {seen.shape}; {layout} has "
            f"others, of shape {layout.shape}"
        )
    if layout.shape == seen.shape and same:
        return layout.strided(seen.strides)
    size = seen.strides[-1] if seen.shape else layout.itemsize
    dense = seen.nbytes == math.prod(seen.shape) * size
    is_flat = not is_exact or len(seen.shape) < 2 or len(layout.shape) < 2
    if dense and is_flat and seen.nbytes == layout.part_bytes:
        return layout
    larger = len(seen.shape) == 1 and seen.nbytes > layout.part_bytes
    if dense and larger and not is_exact:
        return layout
    raise LayoutError(
        f"{what}: a tensor of shape {seen.shape} of {seen.dtype}; {layout} wants "
        f"{layout.shape}{_ADVICE if is_exact else ''}"
    )


_ADVICE = "; pass as many elements, or name the part that is meant: view[START:STOP]"
