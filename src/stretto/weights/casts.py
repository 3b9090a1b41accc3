"""Elements of another type, made at the source: what is sent is what is hashed.

    cast="bfloat16"                            all floating tensors
    cast={"*norm*": None, "*": "bfloat16"}     the first pattern that fits decides
    cast={"*.weight": Float8(block=(128, 128)), "*": "bfloat16"}

What becomes FP8 gets a scale for each tensor, or block: a tensor of its own beside it.
A value is what was sent, times its scale.
"""

from __future__ import annotations

import fnmatch
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from stretto.errors import CallError, LayoutError
from stretto.program.collectives import FLOAT8, narrow, storage, widen
from stretto.transfer.copying.convert import sizes, table
from stretto.weights.boxes import whole
from stretto.weights.manifest import Held
from stretto.weights.tensors import Own

__all__ = ["LEAST", "MOST", "Cast", "Float8", "Made", "made_of"]

_FLOATS = ("float32", "float16", "bfloat16", *FLOAT8)
MOST = {"float8_e4m3fn": 448.0, "float8_e5m2": 57344.0}
"""The largest value of each type."""
LEAST = np.finfo(np.float32).tiny
"""The least scale, as mixed.cuh has it: a smaller one has too few bits, and a quotient
may be larger than the largest value."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Float8:
    """FP8 with scales: one for each block of the last two axes, or for the tensor."""

    dtype: str = "float8_e4m3fn"
    block: tuple[int, int] | None = None
    suffix: str = ""
    """What the scales' name has more; "_scale_inv" of blocks, else "_scale"."""

    def __post_init__(self) -> None:
        """Refuse types and blocks that are none."""
        block = self.block if self.block is not None else (1, 1)
        is_block = isinstance(block, tuple) and len(block) == 2
        if self.dtype not in MOST or not is_block or not all(map(_is_size, block)):
            raise CallError(
                f"{self}; want dtype= of {sorted(MOST)}, and block= of two whole "
                "numbers from 1 on, or None"
            )

    def name(self, of: str) -> str:
        """Return the name of a tensor's scales."""
        return of + (self.suffix or ("_scale_inv" if self.block else "_scale"))


Cast = str | Float8 | Mapping[str, Any] | None


@dataclass(slots=True, kw_only=True, eq=False)
class Made:
    """Tensors that are made of one: itself in another type, and its scales."""

    own: Own
    helds: tuple[Held, ...]
    how: str | Float8 | None
    places: Sequence[Any] = ()
    """Where they lie in a snapshot."""
    numbers: Sequence[int] = ()
    """Which they are of all that lie there."""

    def write(self, places: Sequence[NDArray[Any]]) -> None:
        """Make them on a host, of what the tensor holds now."""
        array, dtype = self.own.array, self.own.held.dtype
        assert self.how is not None, "what is not cast is copied"
        if isinstance(self.how, str):
            from stretto.transfer.copying.elements import convert_run  # compiled

            src = np.ascontiguousarray(array)
            convert_run(
                sizes(dtype, self.how), table(dtype, self.how).ctypes.data,
                places[0].ctypes.data, src.ctypes.data, src.size,
            )  # fmt: skip
        else:
            places[0][...], places[1][...] = quantised(array, dtype, self.how)


def made_of(own: Own, cast: Cast) -> Made:
    """Return what is to be sent for a tensor."""
    held, how = own.held, _how(own.held, cast)
    if how is None or how == held.dtype:
        return Made(own=own, helds=(held,), how=None)
    if isinstance(how, Float8):
        helds = replace(held, dtype=how.dtype), _scales(held, how)
        return Made(own=own, helds=helds, how=how)
    if how not in _FLOATS:
        raise CallError(
            f"{held.name!r}: {held.dtype} does not become {how!r}; cast are "
            f"{', '.join(_FLOATS)}"
        )
    return Made(own=own, helds=(replace(held, dtype=how),), how=how)


def _how(held: Held, cast: Cast) -> str | Float8 | None:
    """Return what becomes of a tensor; integers stay what they are."""
    if held.dtype not in _FLOATS:
        return None
    how: Any = cast
    if isinstance(cast, Mapping):
        fits = (p for p in cast if fnmatch.fnmatchcase(held.name, p))
        how = cast.get(next(fits, ""))
    if how is None or isinstance(how, (str, Float8)):
        return how
    raise CallError(
        f"{held.name!r}: cast to a {type(how).__name__}; want the name of a type, a "
        "Float8, None, or a mapping from patterns of names to these"
    )


def _is_size(given: Any) -> bool:
    return isinstance(given, int) and given >= 1


def _scales(held: Held, how: Float8) -> Held:
    """Return the part of the scales that belongs to a part of a tensor."""
    name = how.name(held.name)
    if how.block is None:
        if held.box != whole(held.shape):
            raise LayoutError(
                f"{held.name!r}: {list(held.box)} of {held.shape} here, and one scale "
                "for all of it needs all of it; pass Float8(block=...)"
            )
        return Held(name=name, shape=(), box=(), dtype="float32")
    if len(held.shape) < 2:
        raise LayoutError(f"{held.name!r}: blocks of shape {held.shape}; want two axes")
    shape, box = list(held.shape), list(held.box)
    for axis, size in zip((-2, -1), how.block, strict=True):
        start, stop = box[axis]
        if start % size or (stop % size and stop != shape[axis]):
            raise LayoutError(
                f"{held.name!r}: {start}:{stop} of axis {axis} cuts a block of {size}"
            )
        shape[axis] = -(-shape[axis] // size)
        box[axis] = start // size, -(-stop // size)
    return Held(name=name, shape=tuple(shape), box=tuple(box), dtype="float32")


def quantised(
    array: NDArray[Any], dtype: str, how: Float8
) -> tuple[NDArray[Any], NDArray[Any]]:
    """Return elements as FP8, as raw bits, and their scales."""
    values = np.asarray(widen(array, dtype), np.float32)
    most = np.float32(MOST[how.dtype])
    if how.block is None:
        scales = _scale(np.max(np.abs(values), initial=0.0), most)
        return _narrowed(values / scales, how.dtype), scales
    rows, columns = how.block
    high, wide = values.shape[-2:]
    edges = [(0, 0)] * (values.ndim - 2) + [(0, -high % rows), (0, -wide % columns)]
    padded = np.pad(np.abs(values), edges)
    split = (-1, padded.shape[-2] // rows, rows, padded.shape[-1] // columns, columns)
    found = padded.reshape(split).max(axis=(2, 4))
    scales = _scale(found.reshape(*values.shape[:-2], *found.shape[1:]), most)
    each = np.repeat(np.repeat(scales, rows, axis=-2), columns, axis=-1)
    return _narrowed(values / each[..., :high, :wide], how.dtype), scales


def _scale(largest: Any, most: np.float32) -> NDArray[Any]:
    """Return what the largest value of a block is divided by; 1 for zeros."""
    found = np.asarray(largest, np.float32)
    least = np.maximum(found / most, LEAST)
    return np.where(found > 0, least, np.float32(1)).astype(np.float32)


def _narrowed(values: NDArray[Any], dtype: str) -> NDArray[Any]:
    made: NDArray[Any] = np.asarray(narrow(values, dtype)).view(storage(dtype))
    return made
