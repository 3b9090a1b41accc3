"""Rows of elements in compiled loops: added in float32, rounded once, made fp8.

Nothing is fused: a product is rounded before it is added, on every machine alike.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from stretto.fabric.jit.atomics import compiled
from stretto.quantised.elements import (
    BF16,
    F16,
    F32,
    KINDS,
    STORED,
    narrowed,
    narrowed8,
    widened,
)
from stretto.quantised.wire import GROUP

__all__ = ["GROUP", "KINDS", "STORED", "add", "narrow", "of_each", "quantised16",
           "quantised32"]  # fmt: skip

_U, _F = np.uint32, np.float32
_LEAST_AMAX = _F(1e-4)
"""A group of smaller elements is scaled as one that has this: none is divided by 0."""
_MOST, _PER_MOST = _F(448.0), _F(1 / 448)


def of_each(signature: str) -> list[str]:
    """Return a signature for each way in which elements are stored, its `item`."""
    return [signature.replace("item", item) for item in ("float32", "uint16")]


@compiled(*of_each("void(float32[::1],item[:,::1],int64,float32,int64)"), lean=True)
def add(total: Any, rows: Any, at: int, weight: Any, kind: int) -> None:
    """Add a row, times a weight; each kind has a loop of its own, of vectors."""
    row = rows[at]
    if kind == F32:
        for i in range(total.shape[0]):
            total[i] += _F(row[i]) * weight
    elif kind == BF16:
        for i in range(total.shape[0]):
            total[i] += _U(_U(row[i]) << _U(16)).view(_F) * weight
    else:
        for i in range(total.shape[0]):
            total[i] += widened(row[i], kind) * weight


@compiled(*of_each("void(float32[::1],item[::1],int64)"), lean=True)
def narrow(total: Any, out: Any, kind: int) -> None:
    """Store a sum, rounded to a kind."""
    if kind == F32:
        for i in range(total.shape[0]):
            out[i] = total[i]
    elif kind == BF16:
        for i in range(total.shape[0]):
            out[i] = narrowed(total[i], BF16)
    else:
        for i in range(total.shape[0]):
            out[i] = narrowed(total[i], F16)


@compiled("void(float32[::1],uint8[::1],float32[::1],int64)", lean=True)
def _quantised(row: Any, out: Any, scales: Any, powers: int) -> None:
    """Make fp8 of a row: each group times what makes its largest 448."""
    for g in range(scales.shape[0]):
        most = _LEAST_AMAX
        for i in range(g * GROUP, (g + 1) * GROUP):
            size = abs(row[i])
            if size > most:
                most = size
        scale, per = _F(_MOST / most), _F(most * _PER_MOST)
        if powers:
            bits = _F(per).view(_U)
            up = _U(1) if _U(bits & _U(0x7FFFFF)) != _U(0) else _U(0)
            exponent = _U(_U(bits >> _U(23)) + up)
            per = _U(exponent << _U(23)).view(_F)
            scale = _U(_U(_U(254) - exponent) << _U(23)).view(_F)
        scales[g] = per
        for i in range(g * GROUP, (g + 1) * GROUP):
            out[i] = narrowed8(row[i] * scale)


@compiled("void(float32[:,::1],uint8[:,::1],float32[:,::1],int64)", lean=True)
def quantised32(rows: Any, out: Any, scales: Any, powers: int) -> None:
    """Make fp8 of rows, with a scale for each group of elements."""
    for t in range(rows.shape[0]):
        _quantised(rows[t], out[t], scales[t], powers)


@compiled("void(uint16[:,::1],uint8[:,::1],float32[:,::1],int64,int64,float32[::1])",
          lean=True)  # fmt: skip
def quantised16(
    rows: Any, out: Any, scales: Any, powers: int, kind: int, line: Any
) -> None:
    """Make fp8 of rows of 16-bit floats; `line` is scratch."""
    for t in range(rows.shape[0]):
        for i in range(line.shape[0]):
            line[i] = widened(rows[t, i], kind)
        _quantised(line, out[t], scales[t], powers)
