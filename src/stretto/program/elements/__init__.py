"""Element types and operators: what arrays hold, and how contributions are combined."""

from __future__ import annotations

from stretto.program.elements.float8 import FLOAT8, Format
from stretto.program.elements.operators import (
    DTYPES,
    Array,
    Operator,
    check,
    combine,
    dtype_name,
    finish,
    narrow,
    reduced,
    storage,
    widen,
)

__all__ = [
    "DTYPES",
    "FLOAT8",
    "Array",
    "Format",
    "Operator",
    "check",
    "combine",
    "dtype_name",
    "finish",
    "narrow",
    "reduced",
    "storage",
    "widen",
]
