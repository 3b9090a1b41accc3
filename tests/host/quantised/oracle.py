"""What a quantised sum is, by tables and exact sums: nothing of it is the library's."""

from __future__ import annotations

import ml_dtypes
import numpy as np

GROUP = 128
LEAST = np.float32(2.0**-100)
TYPES = {
    "float32": np.float32, "bfloat16": ml_dtypes.bfloat16, "float16": np.float16,
}  # fmt: skip
F8 = ml_dtypes.float8_e4m3fn
LARGEST = {"fp8_128": 448, "int8_128": 127}


def through_the_wire(x, wire):
    """Return what a receiver reads of float32 values: each block by its largest."""
    x = np.asarray(x, np.float32)
    blocks = np.zeros(-(-len(x) // GROUP) * GROUP, np.float32)
    blocks[: len(x)] = x
    blocks = blocks.reshape(-1, GROUP)
    with np.errstate(all="ignore"):
        wrong = ~np.isfinite(blocks).all(axis=1)
        most = np.maximum(np.abs(blocks).max(axis=1), LEAST).astype(np.float32)
        most[wrong] = 1
        scaled = blocks * (np.float32(LARGEST[wire]) / most)[:, None]
        raw = (
            scaled.astype(F8).astype(np.float32)
            if wire == "fp8_128"
            else np.rint(scaled).astype(np.int8)
        ).astype(np.float32)
        per = most * np.float32(1 / LARGEST[wire])
        per[wrong] = np.nan
        raw[wrong] = 0
        return (raw * per[:, None]).astype(np.float32).reshape(-1)[: len(x)]


def all_reduce(xs, wire, op="sum"):
    """Return what every rank ends with, in the type of what it gives."""
    kind = np.asarray(xs[0]).dtype
    with np.errstate(all="ignore"):
        total = None
        for x in xs:
            value = through_the_wire(np.asarray(x).astype(np.float32), wire)
            total = value if total is None else (total + value).astype(np.float32)
        if op == "avg":
            total = (total / np.float32(len(xs))).astype(np.float32)
        return through_the_wire(total, wire).astype(kind)


def bound(xs, wire, op="sum"):
    """Return the most that a result may be off from the exact one, by element."""
    exact = np.stack([np.asarray(x).astype(np.float64) for x in xs])
    total = exact.sum(axis=0) / (len(xs) if op == "avg" else 1)
    off = sum(_off(x, wire) for x in exact) / (len(xs) if op == "avg" else 1)
    kind = np.asarray(xs[0]).dtype
    rounding = np.abs(total) * (2.0**-8 if kind != np.float32 else 2.0**-22)
    return (off + _off(np.abs(total) + off, wire)) * 1.001 + rounding + 1e-30


def _off(x, wire):
    """Return by how much each element may be off once it has been on the wire."""
    blocks = np.zeros(-(-len(x) // GROUP) * GROUP)
    blocks[: len(x)] = np.abs(x)
    blocks = blocks.reshape(-1, GROUP)
    most = blocks.max(axis=1, keepdims=True)
    if wire == "int8_128":
        off = np.broadcast_to(most / 254, blocks.shape)
    else:
        off = np.maximum(blocks / 16, most / 458752)
    return off.reshape(-1)[: len(x)]
