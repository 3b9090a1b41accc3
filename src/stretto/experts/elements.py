"""Rows of elements in compiled loops: added in float32, rounded once, made fp8.

Nothing is fused: a product is rounded before it is added, on every machine alike.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from stretto.fabric.jit.atomics import compiled

__all__ = ["BF16", "F16", "F32", "GROUP", "KINDS", "STORED", "add16", "add32",
           "narrow16", "narrow32", "quantised16", "quantised32"]  # fmt: skip

F32, BF16, F16 = 0, 1, 2
KINDS = {"float32": F32, "bfloat16": BF16, "float16": F16}
"""Types of rows, as loops are told them."""
GROUP = 128
"""Elements that have one scale."""
STORED = {"float32": "float32", "bfloat16": "uint16", "float16": "uint16"}
"""How loops see them."""
_U, _F = np.uint32, np.float32
_LEAST_AMAX = _F(1e-4)
"""A group of smaller elements is scaled as one that has this: none is divided by 0."""
_MOST, _PER_MOST = _F(448.0), _F(1 / 448)


@compiled("float32(uint16,int64)", lean=True)
def _widened(raw: Any, kind: int) -> Any:
    """Return the value of a 16-bit float."""
    bits = _U(raw)
    if kind == BF16:
        return _U(bits << _U(16)).view(_F)
    sign = _U((bits & _U(0x8000)) << _U(16))
    rest = _U(bits & _U(0x7FFF))
    if rest < _U(0x400):  # below the least normal number: a multiple of 2**-24
        value = _F(rest) * _F(2.0**-24)
        return _U(_F(value).view(_U) | sign).view(_F)
    top = _U(0x1C000) if rest < _U(0x7C00) else _U(0x38000)
    return _U(_U((rest + top) << _U(13)) | sign).view(_F)


@compiled("uint16(float32,int64)", lean=True)
def _narrowed(value: Any, kind: int) -> Any:
    """Round to a 16-bit float, to nearest even."""
    bits = _F(value).view(_U)
    size = _U(bits & _U(0x7FFFFFFF))
    if kind == BF16:
        if size > _U(0x7F800000):
            return np.uint16(_U(bits >> _U(16)) | _U(0x40))
        even = _U(_U(bits >> _U(16)) & _U(1))
        return np.uint16(_U(bits + _U(0x7FFF) + even) >> _U(16))
    sign = _U(_U(bits >> _U(16)) & _U(0x8000))
    if size > _U(0x7F800000):
        return np.uint16(sign | _U(0x7E00))
    if size > _U(0x477FEFFF):
        return np.uint16(sign | _U(0x7C00))
    if size < _U(0x38800000):  # adding a half lets the adder round
        made = _U(_F(_U(size).view(_F) + _F(0.5)).view(_U) - _U(0x3F000000))
        return np.uint16(sign | made)
    even = _U(_U(size >> _U(13)) & _U(1))
    return np.uint16(sign | _U(_U(size - _U(0x38000000) + _U(0xFFF) + even) >> _U(13)))


@compiled("void(float32[::1],float32[:,::1],int64,float32,int64)", lean=True)
def add32(total: Any, rows: Any, at: int, weight: Any, kind: int) -> None:
    """Add a row, times a weight."""
    row = rows[at]
    for i in range(total.shape[0]):
        total[i] += row[i] * weight


@compiled("void(float32[::1],uint16[:,::1],int64,float32,int64)", lean=True)
def add16(total: Any, rows: Any, at: int, weight: Any, kind: int) -> None:
    """Add a row of 16-bit floats, times a weight."""
    row = rows[at]
    if kind == BF16:  # a loop of its own: vectors
        for i in range(total.shape[0]):
            total[i] += _U(_U(row[i]) << _U(16)).view(_F) * weight
    else:
        for i in range(total.shape[0]):
            total[i] += _widened(row[i], kind) * weight


@compiled("void(float32[::1],float32[::1],int64)", lean=True)
def narrow32(total: Any, out: Any, kind: int) -> None:
    """Store a sum."""
    for i in range(total.shape[0]):
        out[i] = total[i]


@compiled("void(float32[::1],uint16[::1],int64)", lean=True)
def narrow16(total: Any, out: Any, kind: int) -> None:
    """Round a sum to 16-bit floats."""
    if kind == BF16:
        for i in range(total.shape[0]):
            out[i] = _narrowed(total[i], BF16)
    else:
        for i in range(total.shape[0]):
            out[i] = _narrowed(total[i], F16)


@compiled("uint8(float32)", lean=True)
def _narrowed8(value: Any) -> Any:
    """Round to e4m3fn, to nearest even; what is too large becomes 448, NaN stays."""
    bits = _F(value).view(_U)
    size = _U(bits & _U(0x7FFFFFFF))
    sign = _U(_U(bits >> _U(24)) & _U(0x80))
    if size > _U(0x7F800000):
        return np.uint8(sign | _U(0x7F))
    if size > _U(0x43E00000):
        return np.uint8(sign | _U(0x7E))
    if size < _U(0x3C800000):  # adding 2**14 lets the adder round
        made = _U(_F(_U(size).view(_F) + _F(16384.0)).view(_U) - _U(0x46800000))
        return np.uint8(sign | made)
    even = _U(_U(size >> _U(20)) & _U(1))
    return np.uint8(sign | _U(_U(size - _U(0x3C000000) + _U(0x7FFFF) + even) >> _U(20)))


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
            out[i] = _narrowed8(row[i] * scale)


@compiled("void(float32[:,::1],uint8[:,::1],float32[:,::1],int64,int64)", lean=True)
def quantised32(rows: Any, out: Any, scales: Any, kind: int, powers: int) -> None:
    """Make fp8 of rows, with a scale for each group of elements."""
    for t in range(rows.shape[0]):
        _quantised(rows[t], out[t], scales[t], powers)


@compiled("void(uint16[:,::1],uint8[:,::1],float32[:,::1],int64,int64,float32[::1])",
          lean=True)  # fmt: skip
def quantised16(
    rows: Any, out: Any, scales: Any, kind: int, powers: int, line: Any
) -> None:
    """Make fp8 of rows of 16-bit floats; `line` is scratch."""
    for t in range(rows.shape[0]):
        for i in range(line.shape[0]):
            line[i] = _widened(rows[t, i], kind)
        _quantised(line, out[t], scales[t], powers)
