"""8-bit floats: e4m3fn (no infinity, largest 448) and e5m2 (the upper byte of a half).

Rounding is to nearest even. What is too large becomes the largest number of e4m3fn and
infinity in e5m2, as PyTorch casts; NaN stays NaN, with all its lower bits set.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray


class Format(NamedTuple):
    """How a type divides its seven bits, and where it ends."""

    mantissa: int
    bias: int
    overflow: int
    """Bits of the largest float32 that rounds to a number; see `most`."""
    most: int
    """What is larger becomes this byte."""

    @property
    def least(self) -> int:
        """Return the bits of the least normal number, as a float32."""
        return (128 - self.bias) << 23


FLOAT8 = {
    "float8_e4m3fn": Format(mantissa=3, bias=7, overflow=0x43E80000, most=0x7E),
    "float8_e5m2": Format(mantissa=2, bias=15, overflow=0x477FFFFF, most=0x7C),
}
"""The types by name; e4m3fn's overflow is 464, e5m2's the float below 65536."""


def widen8(raw: NDArray[Any], dtype: str) -> NDArray[Any]:
    """Return the values of stored bytes."""
    values: NDArray[Any] = _TABLES[dtype][raw.view(np.uint8)]
    return values


def narrow8(wide: NDArray[Any], dtype: str) -> NDArray[Any]:
    """Round values to bytes, to nearest even.

    Adding half of the last kept place carries into the exponent as it should; below the
    least normal number, adding a float whose last place is theirs lets the adder round.
    """
    form = FLOAT8[dtype]
    bits = np.ascontiguousarray(wide, np.float32).view(np.uint32)
    sign = (bits >> 31 << 7).astype(np.uint8)
    size = bits & np.uint32(0x7FFFFFFF)
    shift = 23 - form.mantissa
    magic = np.uint32((128 - form.bias + shift) << 23)
    tiny = (size.view(np.float32) + magic.view(np.float32)).view(np.uint32) - magic
    half = np.uint32((1 << (shift - 1)) - 1)
    rebias = np.uint32((127 - form.bias) << 23)
    normal = (size - rebias + half + (size >> shift & 1)) >> shift
    rounded = np.where(size < form.least, tiny, normal)
    rounded = np.where(size > form.overflow, form.most, rounded)
    rounded = np.where(size > 0x7F800000, 0x7F, rounded)
    made: NDArray[Any] = rounded.astype(np.uint8) | sign
    return made


def _table(dtype: str) -> NDArray[Any]:
    form = FLOAT8[dtype]
    codes = np.arange(256, dtype=np.int64)
    exponent = (codes & 0x7F) >> form.mantissa
    mantissa = codes & (1 << form.mantissa) - 1
    whole = np.where(exponent > 0, mantissa + (1 << form.mantissa), mantissa)
    power = np.maximum(exponent, 1) - form.bias - form.mantissa
    value = np.ldexp(whole.astype(np.float32), power)
    if dtype == "float8_e5m2":
        top = exponent == 0x1F
        value[top] = np.where(mantissa[top] == 0, np.inf, np.nan)
    else:
        value[codes & 0x7F == 0x7F] = np.nan
    table: NDArray[Any] = np.where(codes < 0x80, value, -value).astype(np.float32)
    return table


_TABLES = {dtype: _table(dtype) for dtype in FLOAT8}
