"""Operators and element types: how contributions are combined, and rounded.

Floats of 8 and 16 bits are widened to float32, combined there left to right, and
rounded once. `avg` is the sum, divided once at the end. min and max carry NaN.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from stretto.errors import CallError, UnknownNameError
from stretto.program.elements.float8 import FLOAT8, narrow8, widen8

Array = NDArray[Any]

_OPERATORS_ELSEWHERE = {
    **dict.fromkeys(("add", "plus", "+"), "sum"),
    **dict.fromkeys(("mean", "average"), "avg"),
    **dict.fromkeys(("product", "multiply", "mul", "times", "*"), "prod"),
    **dict.fromkeys(("minimum", "amin", "reduce_min"), "min"),
    **dict.fromkeys(("maximum", "amax", "reduce_max"), "max"),
    **dict.fromkeys(("and", "land", "bitwise_and", "logical_and", "&"), "band"),
    **dict.fromkeys(("or", "lor", "bitwise_or", "logical_or", "|"), "bor"),
    **dict.fromkeys(("xor", "lxor", "bitwise_xor", "logical_xor", "^"), "bxor"),
}
"""What MPI, NCCL, torch and NumPy call our operators."""


class Operator(enum.Enum):
    """How contributions are combined."""

    SUM = "sum"
    PROD = "prod"
    MIN = "min"
    MAX = "max"
    AVG = "avg"
    BAND = "band"
    BOR = "bor"
    BXOR = "bxor"

    @classmethod
    def named(cls, name: str | Operator) -> Operator:
        """Return the operator of that name."""
        try:
            return cls(name)
        except ValueError:
            word = getattr(name, "__name__", str(name)).rpartition(".")[2].lower()
            raise UnknownNameError.among(
                "operator",
                str(name),
                (o.value for o in cls),
                meant=_OPERATORS_ELSEWHERE.get(word, word),
            ) from None


_NATIVE = (
    *("bool", "int8", "int16", "int32", "int64"),
    *("uint8", "uint16", "uint32", "uint64"),
    *("float16", "float32", "float64", "complex64", "complex128"),
)
DTYPES: dict[str, np.dtype[Any]] = {
    **{name: np.dtype(name) for name in _NATIVE},
    "bfloat16": np.dtype("uint16"),
    **{name: np.dtype("uint8") for name in FLOAT8},
}
"""Element types by name, and how NumPy stores them: what it lacks is raw bits."""
_DTYPES_ELSEWHERE = {
    **dict.fromkeys(("half", "fp16", "f16", "float16_t"), "float16"),
    **dict.fromkeys(("bf16", "bfloat"), "bfloat16"),
    **dict.fromkeys(("float", "fp32", "f32", "single"), "float32"),
    **dict.fromkeys(("double", "fp64", "f64"), "float64"),
    **dict.fromkeys(("fp8", "float8", "e4m3", "float8_e4m3"), "float8_e4m3fn"),
    **dict.fromkeys(("e5m2",), "float8_e5m2"),
    **dict.fromkeys(("int", "i32"), "int32"),
    **dict.fromkeys(("long", "i64"), "int64"),
    **dict.fromkeys(("char", "i8"), "int8"),
    **dict.fromkeys(("byte", "u8"), "uint8"),
}
"""What torch, NCCL and MPI call our element types."""
_RAW_FLOATS = ("bfloat16", *FLOAT8)


def _multiplied(a: Any, b: Any) -> Any:
    """Return products; complex ones the schoolbook's, with every step rounded.

    NumPy fuses their steps on some processors, and then the last bit differs.
    """
    if a.dtype.kind != "c":
        return np.multiply(a, b)
    made = np.empty_like(a)
    made.real = a.real * b.real - a.imag * b.imag
    made.imag = a.real * b.imag + a.imag * b.real
    return made


_COMBINED: dict[Operator, Callable[[Any, Any], Any]] = {
    Operator.SUM: np.add,
    Operator.AVG: np.add,
    Operator.PROD: _multiplied,
    Operator.MIN: np.minimum,
    Operator.MAX: np.maximum,
    Operator.BAND: np.bitwise_and,
    Operator.BOR: np.bitwise_or,
    Operator.BXOR: np.bitwise_xor,
}
_BITWISE = {Operator.BAND, Operator.BOR, Operator.BXOR}
_ORDERED = {Operator.MIN, Operator.MAX}


def dtype_name(dtype: np.dtype[Any] | str) -> str:
    """Return our name of a NumPy (or ml_dtypes) element type."""
    name = dtype if isinstance(dtype, str) else dtype.name
    if name not in DTYPES:
        word = name.rpartition(".")[2].lower()
        meant = _DTYPES_ELSEWHERE.get(word, word)
        raise UnknownNameError.among("dtype", name, DTYPES, meant=meant)
    return name


def storage(dtype: str) -> np.dtype[Any]:
    """Return how elements of that type are stored."""
    return DTYPES[dtype_name(dtype)]


def check(op: Operator, dtype: str) -> None:
    """Raise `CallError` when an operator makes no sense for a type."""
    kind = "f" if dtype in _RAW_FLOATS else DTYPES[dtype_name(dtype)].kind
    wrong = (
        (op in _BITWISE and kind not in "iub")
        or (op in _ORDERED and kind == "c")
        or (op is Operator.AVG and kind not in "fc")
    )
    if wrong:
        want = {
            "f": "sum, prod, min, max, avg",
            "c": "sum, prod, avg",
        }.get(kind, "sum, prod, min, max, band, bor, bxor")
        instead = " (divide the sum, rounded as you like)" if op is Operator.AVG else ""
        raise CallError(
            f"op={op.value!r} makes no sense for {dtype}; it takes {want}{instead}"
        )


def widen(raw: NDArray[Any], dtype: str) -> NDArray[Any]:
    """Return the values in the type they are accumulated in."""
    if dtype == "bfloat16":
        return (raw.view(np.uint16).astype(np.uint32) << 16).view(np.float32)
    if dtype in FLOAT8:
        return widen8(raw, dtype)
    return raw.astype(np.float32) if dtype == "float16" else raw


def narrow(wide: NDArray[Any], dtype: str) -> NDArray[Any]:
    """Round accumulated values to the element type, to nearest even."""
    if dtype in FLOAT8:
        return narrow8(wide, dtype)
    if dtype != "bfloat16":
        return wide.astype(storage(dtype))
    bits = np.ascontiguousarray(wide, np.float32).view(np.uint32)
    rounded = ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype(np.uint16)
    quiet = ((bits >> 16) | 0x40).astype(np.uint16)
    return np.where(np.isnan(wide), quiet, rounded)


def combine(op: Operator, parts: Sequence[NDArray[Any]], dtype: str) -> NDArray[Any]:
    """Return the parts combined left to right and rounded once."""
    if len(parts) == 1:
        return parts[0].copy()
    both = _COMBINED[op]
    with np.errstate(all="ignore"):
        total = widen(parts[0], dtype)
        for part in parts[1:]:
            total = both(total, widen(part, dtype))
        return narrow(total, dtype)


def finish(op: Operator, total: NDArray[Any], num: int, dtype: str) -> NDArray[Any]:
    """Divide a finished sum once when the operator is `avg`."""
    if op is not Operator.AVG:
        return total
    wide = widen(total, dtype)
    divisor = wide.dtype.type(num)
    return narrow(wide / divisor, dtype)


def reduced(op: Operator, inputs: Sequence[NDArray[Any]]) -> NDArray[Any]:
    """Return the inputs combined in the widest type, for oracles.

    Floating types are combined in double precision, so that an oracle is better than
    what it judges; integers wrap as NumPy's do.
    """
    wide = {"f": np.float64, "c": np.complex128}
    first = inputs[0]
    target = np.dtype(wide.get(first.dtype.kind, first.dtype))
    with np.errstate(all="ignore"):
        total = first.astype(target)
        for part in inputs[1:]:
            total = _COMBINED[op](total, part.astype(target))
        if op is Operator.AVG:
            total = total / len(inputs)
    return total
