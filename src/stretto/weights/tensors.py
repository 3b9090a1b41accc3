"""What callers hand in, as parts of named tensors: modules, state dicts, shards.

PyTorch is not imported: a module is what has `named_parameters`, a DTensor what has
`placements`. Buffers count as parameters do, also those that are not persistent.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from stretto.arrays import host_view, on_gpu
from stretto.errors import CallError, LayoutError
from stretto.transfer import Layout
from stretto.weights.boxes import Box, whole
from stretto.weights.manifest import Held

__all__ = [
    "Own", "emptied", "flat", "lies", "named_tensors", "owned", "require_writable",
]  # fmt: skip

_WRAPPERS = ("module.", "_orig_mod.", "_fsdp_wrapped_module.")
"""What DDP, torch.compile and FSDP put before names."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Own:
    """A tensor that lies here, and which part of which whole one it is."""

    held: Held
    given: Any
    """What the caller has: the tensor, of a DTensor the local one."""
    array: Any
    """The same memory: of a host NumPy's, of a GPU PyTorch's."""

    @property
    def name(self) -> str:
        """Return its name."""
        return self.held.name


def named_tensors(given: Any) -> Iterator[tuple[str, Any]]:
    """Yield the tensors of a module or a mapping, by names without wrappers."""
    if hasattr(given, "named_parameters"):
        for of in (given.named_parameters, given.named_buffers):
            yield from ((_bare(n), v) for n, v in of(remove_duplicate=False))
    elif isinstance(given, Mapping):
        yield from ((str(name), value) for name, value in given.items())
    else:
        raise CallError(
            f"got a {type(given).__name__}; want a module, or a mapping from names to "
            "tensors"
        )


def _bare(name: str) -> str:
    for wrapper in _WRAPPERS:
        name = name.removeprefix(wrapper).replace(f".{wrapper}", ".")
    return name


def owned(given: Any, layouts: Mapping[str, Any] | None = None) -> list[Own]:
    """Return all tensors that have elements here.

    `layouts` says by name which part of a whole one a plain tensor is, as a layout's
    text without names that matter: {"w": "A=64[0:32] B=16 float32"}.
    """
    found: dict[str, Own] = {}
    if layouts is not None and not isinstance(layouts, Mapping):
        raise CallError(f"layouts={layouts!r:.80}; want a mapping from names to texts")
    said = dict(layouts or {})
    for name, value in named_tensors(given):
        if value is None:
            continue
        one = _own(name, value, said.pop(name, None))
        if name in found:
            raise CallError(f"two tensors are named {name!r}")
        if one is not None:
            found[name] = one
    if said:
        raise CallError(
            f"layouts of {sorted(said)[:3]}, which are not among the tensors"
        )
    if not found:
        raise CallError("no tensors that have elements")
    return list(found.values())


def emptied(given: Any, some: Iterable[Own]) -> dict[str, Any]:
    """Return tensors that have no elements here: they are any version's."""
    names = {own.name for own in some}
    return {
        name: value.to_local() if hasattr(value, "placements") else value
        for name, value in named_tensors(given)
        if value is not None and name not in names
    }


def _own(name: str, value: Any, layout: Any) -> Own | None:
    part: tuple[tuple[int, ...], Box] | None = None
    if hasattr(value, "placements") and hasattr(value, "device_mesh"):
        sizes = tuple(map(int, value.shape))
        part = sizes, _box_of(name, value, sizes)
        value = value.to_local()
    if hasattr(value, "detach"):
        value = value.detach()
    array, dtype = _seen(value, f"{name!r}")
    if layout is not None:
        part = _said(name, layout, dtype)
    shape, box = part or (tuple(array.shape), whole(array.shape))
    extent = tuple(stop - start for start, stop in box)
    if 0 in array.shape and 0 in extent:
        return None
    if extent != tuple(array.shape):
        raise LayoutError(
            f"{name!r}: it is {list(box)} of shape {shape}, and has shape "
            f"{tuple(array.shape)}"
        )
    if isinstance(array, np.ndarray) and any(s < 0 for s in array.strides):
        raise CallError(f"{name!r}: runs backwards; pass a copy")
    held = Held(name=name, shape=shape, box=box, dtype=dtype)
    return Own(held=held, given=value, array=array)


def _seen(value: Any, what: str) -> tuple[Any, str]:
    """Return a tensor as an array, and the name of its type."""
    if not on_gpu(value):
        return host_view(value, what)
    if not hasattr(value, "data_ptr"):
        raise CallError(f"{what}: a {type(value).__name__} on a GPU; want PyTorch's")
    return value, str(value.dtype).removeprefix("torch.")


def require_writable(some: Iterable[Own]) -> None:
    """Raise where a version cannot be written: each element in its own place."""
    for own in some:
        array = own.array
        if isinstance(array, np.ndarray):
            if not array.flags.writeable:
                raise LayoutError(f"{own.name!r}: a read-only array; want one to write")
            steps, least = array.strides, array.itemsize
        else:
            steps, least = tuple(array.stride()), 1
        for step, size in sorted(zip(steps, array.shape, strict=True)):
            if size > 1 and step < least:
                raise LayoutError(
                    f"{own.name!r}: shape {tuple(array.shape)} at distances {steps}: "
                    "elements lie over one another; want each in its own place"
                )
            least += (size - 1) * step if size > 1 else 0


def lies(array: Any) -> Any:
    """Return how an array lies: tensors that lie alike are moved at once."""
    if isinstance(array, np.ndarray):
        return array.strides
    return tuple(array.stride()), str(array.device)


def _said(name: str, layout: Any, dtype: str) -> tuple[tuple[int, ...], Box]:
    """Return the whole shape and the part that a layout says."""
    read = layout if isinstance(layout, Layout) else Layout(layout)
    if read.parts or read.dtype != dtype:
        raise LayoutError(f"{name!r}, of {dtype}: layout {read}; want one of its type")
    return (
        tuple(axis.total for axis in read.axes),
        tuple((axis.start, axis.stop) for axis in read.axes),
    )


def _box_of(name: str, value: Any, shape: Sequence[int]) -> Box:
    """Return the part of a DTensor that this rank has, as PyTorch cuts it.

    Of a strided shard, as FSDP makes over tensor parallelism, the later axes of the
    mesh have cut first.
    """
    mesh, box = value.device_mesh, list(whole(shape))
    place = mesh.get_coordinate()
    if place is None:
        raise LayoutError(f"{name!r}: this rank is not in its mesh")
    steps = list(enumerate(value.placements))
    steps.sort(key=lambda step: type(step[1]).__name__ == "_StridedShard")
    for axis, placement in steps:
        if placement.is_replicate():
            continue
        if not hasattr(placement, "dim"):
            raise LayoutError(
                f"{name!r} is {placement} over its mesh: sums that are not added up; "
                "redistribute it first"
            )
        start, stop = box[placement.dim]
        each = -(-(stop - start) // mesh.size(axis))
        first = min(start + each * place[axis], stop)
        box[placement.dim] = first, min(first + each, stop)
    return tuple(box)


def flat(array: Any) -> Any:
    """Return an array of at least one axis: the same memory."""
    return array.reshape(1) if array.ndim == 0 else array
