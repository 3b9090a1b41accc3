"""Element types and operators, as kernels name them."""

from __future__ import annotations

from stretto.program.elements import Operator, check, storage

ELEMENTS = {
    "bool": "Bool",
    "int8": "Int8",
    "int16": "Int16",
    "int32": "Int32",
    "int64": "Int64",
    "uint8": "UInt8",
    "uint16": "UInt16",
    "uint32": "UInt32",
    "uint64": "UInt64",
    "float16": "Float16",
    "bfloat16": "BFloat16",
    "float32": "Float32",
    "float64": "Float64",
    "complex64": "Complex64s",
    "complex128": "Complex128s",
    "float8_e4m3fn": "Float8E4M3",
    "float8_e5m2": "Float8E5M2",
}
"""Structures of element.cuh, by our names of element types."""

OPERATORS = {
    Operator.SUM: "Sum",
    Operator.PROD: "Prod",
    Operator.MIN: "Min",
    Operator.MAX: "Max",
    Operator.AVG: "Avg",
    Operator.BAND: "And",
    Operator.BOR: "Or",
    Operator.BXOR: "Xor",
}
"""Structures of reduce.cuh."""

_BITS = {1: "UInt8", 2: "UInt16", 4: "UInt32", 8: "UInt64", 16: "Complex128s"}


def itemsize(dtype: str) -> int:
    """Return the bytes of an element."""
    return storage(dtype).itemsize


def element(
    dtype: str, op: Operator, *, reduces: bool, members: int = 0
) -> tuple[str, str]:
    """Return the structures of a type and an operator that go together.

    What is only moved is bits: one kernel serves all types of a size. `members` says
    how many ranks an average is of; 0: of all.
    """
    size = itemsize(dtype)
    if not reduces:
        return _BITS[size], "Sum"
    check(op, dtype)
    name = OPERATORS[op]
    some = members and op is Operator.AVG
    return ELEMENTS[dtype], f"{name}Of<{members}>" if some else name
