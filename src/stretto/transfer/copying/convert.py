"""What the loops need to convert one type of elements to another."""

from __future__ import annotations

import functools
from typing import Any

import numpy as np
from numpy.typing import NDArray

from stretto.program.collectives import FLOAT8, narrow, storage, widen


def sizes(src: str, dst: str) -> int:
    """Return a word that says which sizes elements have, or 0 when they stay."""
    if src == dst:
        return 0
    return 16 * storage(src).itemsize + storage(dst).itemsize


def converted(raw: NDArray[Any], src: str, dst: str) -> NDArray[Any]:
    """Return elements as another type: the meaning of every conversion."""
    with np.errstate(all="ignore"):
        return raw if src == dst else narrow(widen(raw, src), dst)


@functools.cache
def table(src: str, dst: str) -> NDArray[Any]:
    """Return what the loops look up."""
    if src == "float32":
        return _form(dst)
    kind = np.dtype(f"uint{8 * storage(src).itemsize}")
    codes = np.arange(1 << 8 * kind.itemsize, dtype=kind).view(storage(src))
    made = np.ascontiguousarray(converted(codes, src, dst))
    return made.view(f"uint{8 * made.itemsize}").astype(np.uint32)


def _form(dst: str) -> NDArray[np.int64]:
    """Return how a type divides its bits: see `elements.narrowed`."""
    if dst in FLOAT8:
        form = FLOAT8[dst]
        words = (form.mantissa, form.bias, 7, 0x7F, form.overflow, form.most)
    elif dst == "float16":
        words = (10, 15, 15, 0x7E00, 0x477FEFFF, 0x7C00)
    else:
        words = (7, 127, 15, 0x7FC0, 0x7F7F7FFF, 0x7F80)
    return np.array([*words, 0, 0], np.int64)
