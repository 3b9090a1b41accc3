"""Elements of 16 and 8 bits in compiled loops: widened to float32, and rounded."""

from __future__ import annotations

from typing import Any

import numpy as np

from stretto.fabric.jit.atomics import compiled

__all__ = ["BF16", "F16", "F32", "KINDS", "STORED", "narrowed", "narrowed8", "widened"]

F32, BF16, F16 = 0, 1, 2
KINDS = {"float32": F32, "bfloat16": BF16, "float16": F16}
"""Types of elements, as loops are told them."""
STORED = {"float32": "float32", "bfloat16": "uint16", "float16": "uint16"}
"""How loops see them."""
_U, _F = np.uint32, np.float32


@compiled("float32(uint16,int64)", lean=True)
def widened(raw: Any, kind: int) -> Any:
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
def narrowed(value: Any, kind: int) -> Any:
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


@compiled("uint8(float32)", lean=True)
def narrowed8(value: Any) -> Any:
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
