"""The few expressions that an epilogue is made of, and the graph that they form.

An epilogue is a Python function, called once on expressions in place of arrays: what it
returns is a graph. Everything is float32 arithmetic, each operation rounded by itself.

    arithmetic     + - * /   negation   abs   minimum   maximum
    functions      exp  tanh  sqrt  rsqrt (one over the rounded root)
    choice         where(condition, a, b), with < <= > >= as conditions
    rounding       cast(x, dtype): to an element type, to nearest even
    of a row       row_sum  row_mean  row_max  row_amax (the largest absolute value)
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import NamedTuple, TypeAlias

from stretto.errors import CallError

CASTS = ("float32", "float16", "bfloat16", "float8_e4m3fn", "float8_e5m2")
"""Element types that epilogues read and write."""
REDUCTIONS = ("row_sum", "row_max")
_CONDITIONS = ("lt", "le", "gt", "ge")

Value: TypeAlias = "Expr | float | int"
_Method: TypeAlias = Callable[["Expr", Value], "Expr"]


def _sides(op: str) -> tuple[_Method, _Method]:
    """Return the methods of an expression on the left of an operator, and the right."""

    def left(self: Expr, other: Value) -> Expr:
        return _made(op, self, other)

    def right(self: Expr, other: Value) -> Expr:
        return _made(op, other, self)

    return left, right


class Expr:
    """A value of an epilogue: one for every element, or one for every row."""

    __slots__ = ("args", "op", "value")
    __hash__ = object.__hash__

    def __init__(
        self, op: str, args: Sequence[Expr] = (), value: float | str | None = None
    ) -> None:
        """Record an operation; `value` is an input's name, a number or a type."""
        self.op, self.args, self.value = op, tuple(args), value

    def __bool__(self) -> bool:
        raise CallError(
            f"an epilogue asked whether a value is true ({self.op}); it is traced, "
            "without numbers: want where(condition, a, b) in place of if, and, or"
        )

    def __neg__(self) -> Expr:
        return _made("neg", self)

    def __abs__(self) -> Expr:
        return _made("abs", self)

    __add__, __radd__ = _sides("add")
    __sub__, __rsub__ = _sides("sub")
    __mul__, __rmul__ = _sides("mul")
    __truediv__, __rtruediv__ = _sides("div")
    __lt__, __le__ = _sides("lt")[0], _sides("le")[0]
    __gt__, __ge__ = _sides("gt")[0], _sides("ge")[0]


def _as_expr(value: object) -> Expr:
    if isinstance(value, Expr):
        return value
    if isinstance(value, int | float) and not isinstance(value, bool):
        with suppress(OverflowError):
            return Expr("number", value=float(value))
    raise CallError(
        f"an epilogue uses {value!r:.60}, a {type(value).__name__}; want its "
        "parameters, numbers, and the functions of stretto.epilogues (arrays are "
        "parameters)"
    )


def _made(op: str, *args: Value) -> Expr:
    made = [_as_expr(a) for a in args]
    for at, arg in enumerate(made):
        is_condition, wanted = arg.op in _CONDITIONS, op == "where" and at == 0
        if is_condition != wanted:
            what = "a condition" if is_condition else "a number"
            want = "a comparison first" if wanted else "numbers; use where()"
            raise CallError(f"epilogue: {op} got {what} ({arg.op}); want {want}")
    return Expr(op, made)


def minimum(a: Value, b: Value) -> Expr:
    """Return the smaller; NaN when either is."""
    return _made("minimum", a, b)


def maximum(a: Value, b: Value) -> Expr:
    """Return the larger; NaN when either is."""
    return _made("maximum", a, b)


def exp(x: Value) -> Expr:
    """Return e to the power of x."""
    return _made("exp", x)


def tanh(x: Value) -> Expr:
    """Return the hyperbolic tangent."""
    return _made("tanh", x)


def sqrt(x: Value) -> Expr:
    """Return the square root."""
    return _made("sqrt", x)


def rsqrt(x: Value) -> Expr:
    """Return one over the square root, both rounded: the same bits everywhere."""
    return 1.0 / sqrt(x)


def where(condition: Expr, a: Value, b: Value) -> Expr:
    """Return a where the condition holds, else b."""
    return _made("where", condition, a, b)


def cast(x: Value, dtype: str) -> Expr:
    """Return x rounded to an element type; an output made so is stored as one."""
    if dtype not in CASTS:
        raise CallError(f"cast to {dtype!r}; want one of {', '.join(CASTS)}")
    return Expr("cast", [_as_expr(x)], dtype)


def row_sum(x: Value) -> Expr:
    """Return the sum of a row, in an order that only its length decides."""
    return _made("row_sum", x)


def row_mean(x: Value) -> Expr:
    """Return the mean of a row: its sum, divided once."""
    return row_sum(x) / Expr("length")


def row_max(x: Value) -> Expr:
    """Return the largest of a row; NaN when one is."""
    return _made("row_max", x)


def row_amax(x: Value) -> Expr:
    """Return the largest absolute value of a row, as dynamic scales need it."""
    return row_max(abs(_as_expr(x)))


class Node(NamedTuple):
    """One operation of a graph; arguments are numbers of earlier nodes."""

    op: str
    args: tuple[int, ...] = ()
    value: float | str | None = None

    def __str__(self) -> str:
        """Return it as a call."""
        parts = [f"v{a}" for a in self.args]
        parts += [] if self.value is None else [str(self.value)]
        return f"{self.op}({', '.join(parts)})"


class Graph(NamedTuple):
    """A traced epilogue: frozen, comparable, and its text is its identity."""

    nodes: tuple[Node, ...]
    inputs: tuple[str, ...]
    """Parameters in their order; the first is the collective's result."""
    outputs: tuple[tuple[str, int], ...]
    """Names and nodes."""

    def __str__(self) -> str:
        """Return a line for every node."""
        lines = [f"v{i} = {node}" for i, node in enumerate(self.nodes)]
        return "\n".join([*lines, *(f"{name} = v{at}" for name, at in self.outputs)])


def graph(inputs: Sequence[str], outputs: Sequence[tuple[str, Expr]]) -> Graph:
    """Return the graph of expressions, every one once, arguments first."""
    numbers: dict[Expr, int] = {}
    known: dict[Node, int] = {}
    nodes: list[Node] = []

    def number(root: Expr) -> int:
        stack = [root]
        while stack:
            expr = stack[-1]
            if expr in numbers:
                stack.pop()
                continue
            missing = [a for a in expr.args if a not in numbers]
            if missing:
                stack += missing
                continue
            node = Node(expr.op, tuple(numbers[a] for a in expr.args), expr.value)
            if node not in known:
                known[node] = len(nodes)
                nodes.append(node)
            numbers[expr] = known[node]
        return numbers[root]

    found = tuple((name, number(expr)) for name, expr in outputs)
    return Graph(tuple(nodes), tuple(inputs), found)
