"""Inputs to test with, what must come out, and how far off is right.

Values are drawn so that exact types are exact and floats stay near one: a wrong sum is
then far from every right one, however it was rounded.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from stretto.errors import CallError
from stretto.program import collectives
from stretto.program.collectives import (
    DTYPES,
    FLOAT8,
    Array,
    Operator,
    Shape,
    check,
    narrow,
    storage,
    widen,
)


def draw(rng: np.random.Generator, count: int, dtype: str, op: Operator) -> Array:
    """Return `count` random elements, in the storage type of `dtype`.

    Products stay in range: their factors lie near one.
    """
    stored = storage(dtype)
    if stored.kind == "b":
        return rng.integers(0, 2, count).astype(stored)
    if not _narrow(dtype) and stored.kind in "iu":
        high = 3 if op is Operator.PROD else 100
        return rng.integers(0, high, count).astype(stored)
    low, high_f = (0.75, 1.25) if op is Operator.PROD else (-2.0, 2.0)
    values: NDArray[Any] = rng.uniform(low, high_f, count)
    if stored.kind == "c":
        values = values + 1j * rng.uniform(low, high_f, count)
        return values.astype(stored)
    return (
        narrow(values.astype(np.float32), dtype)
        if _narrow(dtype)
        else values.astype(stored)
    )


def _narrow(dtype: str) -> bool:
    return dtype in ("float16", "bfloat16", *FLOAT8)


def expected(
    collective: str,
    shape: Shape,
    inputs: Sequence[Array],
    *,
    dtype: str,
    op: Operator,
    counts: Sequence[int],
) -> list[Array]:
    """Return every rank's output by the oracle, in a type no worse than `dtype`."""
    wide = [widen(part, dtype) for part in inputs]
    return collectives.get(collective).oracle(shape, wide, op, np.asarray(counts))


def tolerance(dtype: str, num_ranks: int) -> float:
    """Return the largest relative error that rounding explains; 0: exact types."""
    if dtype == "bfloat16":
        return 2.0**-8 * num_ranks
    if dtype in FLOAT8:
        return 2.0 ** -(FLOAT8[dtype].mantissa + 1) * num_ranks
    stored = storage(dtype)
    return float(np.finfo(stored).eps) * num_ranks if stored.kind in "fc" else 0.0


def largest_error(got: Array, want: Array, dtype: str) -> float:
    """Return the largest error, relative to the largest value expected.

    NaN where NaN is due is right; anywhere else the error is infinite.
    """
    if got.size != want.size:
        raise CallError(f"got {got.size} elements; want {want.size}")
    if not got.size:
        return 0.0
    wide = widen(got.ravel(), dtype)
    if wide.dtype.kind in "biu":
        return float((wide != want.ravel().astype(wide.dtype)).any())
    nan_got, nan_want = np.isnan(wide), np.isnan(want)
    if (nan_got != nan_want).any():
        return float("inf")
    scale = max(1.0, float(np.abs(want[~nan_want]).max(initial=0.0)))
    with np.errstate(all="ignore"):
        off = np.abs(wide - want)[~nan_got]
    return float(off.max(initial=0.0)) / scale


def pairings() -> list[tuple[str, Operator]]:
    """Return every element type with every operator that makes sense for it."""
    found = []
    for dtype in DTYPES:
        for op in Operator:
            try:
                check(op, dtype)
            except CallError:
                continue
            found.append((dtype, op))
    return found
