"""Terms as code for a stack machine, compiled where Numba is."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from stretto.search.language.terms import LARGEST, OPERATORS, Term
from stretto.search.quick import quick

__all__ = ["DEEPEST", "SIGNATURE", "MachineCode", "code_of", "evaluate", "value_of"]

SIGNATURE = "float64(float64[::1],float64[::1],float64[::1],float64[::1])"

DEEPEST = 32
"""Values that a stack has room for."""
_NUMBER, _FEATURE = 0, 1
_WORDS = {name: i + 2 for i, name in enumerate(OPERATORS)}
(
    _OR, _AND, _NOT, _LT, _LE, _GT, _GE, _ADD, _SUB, _MUL, _DIV, _NEG, _MIN, _MAX, _LOG,
    _,
) = _WORDS.values()  # fmt: skip


@dataclass(frozen=True, slots=True)
class MachineCode:
    """A term for the machine: words, and for each its number or its feature.

    Words are floats as well, so that code fits where only floats go.
    """

    words: NDArray[np.float64]
    values: NDArray[np.float64]


def code_of(term: Term, features: Sequence[str]) -> MachineCode:
    """Return a term as code: operands first."""
    words: list[float] = []
    values: list[float] = []
    index = {name: i for i, name in enumerate(features)}

    def put(term: Term) -> None:
        for arg in term.args:
            put(arg)
        if term.op == "number":
            words.append(_NUMBER)
            values.append(term.value)
        elif term.op == "feature":
            words.append(_FEATURE)
            values.append(float(index[term.name]))
        else:
            words.append(_WORDS[term.op])
            values.append(0.0)

    put(term)
    return MachineCode(np.array(words, float), np.array(values))


@quick(SIGNATURE)
def value_of(words: Any, values: Any, features: Any, stack: Any) -> float:
    """Run code on one set of features; the machine itself."""
    top = 0
    for i in range(len(words)):
        word = words[i]
        if word == _NUMBER:
            stack[top] = values[i]
            top += 1
            continue
        if word == _FEATURE:
            stack[top] = features[int(values[i])]
            top += 1
            continue
        if word == _NEG:
            stack[top - 1] = -stack[top - 1]
            continue
        if word == _LOG:
            a = stack[top - 1]
            stack[top - 1] = math.log(1.0 + a) if a >= 0.0 else -math.log(1.0 - a)
            continue
        if word == _NOT:
            stack[top - 1] = 1.0 - stack[top - 1]
            continue
        b = stack[top - 1]
        a = stack[top - 2]
        top -= 1
        if word == _ADD:
            c = a + b
        elif word == _SUB:
            c = a - b
        elif word == _MUL:
            c = a * b
        elif word == _DIV:
            c = a / b if b != 0.0 else 0.0
        elif word == _MIN:
            c = min(b, a)
        elif word == _MAX:
            c = max(b, a)
        elif word == _LT:
            c = 1.0 if a < b else 0.0
        elif word == _LE:
            c = 1.0 if a <= b else 0.0
        elif word == _GT:
            c = 1.0 if a > b else 0.0
        elif word == _GE:
            c = 1.0 if a >= b else 0.0
        elif word == _AND:
            c = a * b
        elif word == _OR:
            c = max(b, a)
        else:  # where: one more operand lies below
            top -= 1
            c = a if stack[top - 1] != 0.0 else b
        stack[top - 1] = LARGEST if c > LARGEST else max(c, -LARGEST)
    return float(stack[0])


@quick("void(float64[::1],float64[::1],float64[:,::1],float64[::1],float64[::1])")
def _values_of(words: Any, values: Any, rows: Any, stack: Any, found: Any) -> None:
    for i in range(len(rows)):
        found[i] = value_of(words, values, rows[i], stack)


def evaluate(code: MachineCode, rows: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the values for rows of features."""
    stack, found = np.zeros(DEEPEST), np.zeros(len(rows))
    rows = np.ascontiguousarray(rows.clip(-LARGEST, LARGEST))
    with np.errstate(all="ignore"):  # where it is not compiled: it cuts off what is inf
        _values_of(code.words, code.values, rows, stack, found)
    return found
