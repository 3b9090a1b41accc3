"""`@epilogue`: a Python function becomes something that a collective can carry.

@epilogue
def add_rms_norm(y, residual, weight, eps):
    s = y + residual
    return {"out": s * rsqrt(row_mean(s * s) + eps) * weight, "residual": s}

made = comm.all_reduce(x, epilogue=add_rms_norm(residual=r, weight=w, eps=1e-6))
made["out"], made["residual"]
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from stretto.errors import CallError
from stretto.program.epilogues.expr import Expr, Graph, graph

SINGLE = "out"
"""The name of the output of a function that returns an expression."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Bound:
    """An epilogue with its arrays: what `epilogue=` of a collective takes."""

    name: str
    graph: Graph
    single: bool
    """Whether the function returned an expression, not names."""
    inputs: Mapping[str, Any]
    row: int | None = None
    """Elements of a row; None: the last axis of the result."""
    outputs: Mapping[str, Any] | None = None

    def into(self, **outputs: Any) -> Bound:
        """Return the same, storing in these arrays; what is not named is made anew."""
        known = [name for name, _ in self.graph.outputs]
        for name in outputs:
            if name not in known:
                raise CallError(
                    f"epilogue {self.name}: into({name}=...); its outputs are "
                    f"{', '.join(known)}"
                )
        return replace(self, outputs={**(self.outputs or {}), **outputs})


@dataclass(frozen=True, slots=True, kw_only=True)
class Epilogue:
    """A traced function; call it with its inputs, by name."""

    name: str
    graph: Graph
    single: bool

    def __call__(self, *, row: int | None = None, **inputs: Any) -> Bound:
        """Bind arrays and numbers; `row`: elements of a row, if not the last axis."""
        wanted = self.graph.inputs[1:]
        wrong = [f"{n} is not among them" for n in inputs if n not in wanted]
        wrong += [f"{n} is missing" for n in wanted if n not in inputs]
        if wrong:
            raise CallError(
                f"epilogue {self.name} takes {', '.join(wanted) or 'nothing'}: "
                + "; ".join(wrong)
            )
        if row is not None and (type(row) is not int or row < 1):
            raise CallError(
                f"epilogue {self.name}: row={row!r:.60}; want a whole number from 1"
            )
        return Bound(
            name=self.name,
            graph=self.graph,
            single=self.single,
            inputs=inputs,
            row=row,
        )

    def __str__(self) -> str:
        """Return the graph's text."""
        return f"epilogue {self.name}({', '.join(self.graph.inputs)})\n{self.graph}"


def epilogue(function: Callable[..., Any]) -> Epilogue:
    """Trace a function of the collective's result and of named inputs."""
    name = getattr(function, "__name__", "epilogue")
    try:
        params = list(inspect.signature(function).parameters.values())
    except (TypeError, ValueError):
        raise CallError(
            f"epilogue({function!r:.60}): want a function of the collective's result "
            "and of named inputs"
        ) from None
    plain = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.POSITIONAL_ONLY)
    first = [p for p in params[:1] if p.kind in plain]
    rest = [p for p in params[1:] if p.kind in (*plain, inspect.Parameter.KEYWORD_ONLY)]
    if len(first) + len(rest) < max(1, len(params)):
        raise CallError(
            f"epilogue {name}{inspect.signature(function)}: want the collective's "
            "result first, then names; no *args, no **options"
        )
    if any(p.name == "row" for p in rest):
        raise CallError(f"epilogue {name}: 'row' names the length; call the input else")
    given = {p.name: Expr("input", value=p.name) for p in rest}
    try:
        made = function(Expr("input", value=params[0].name), **given)
    except TypeError as e:  # of math.sqrt, say: there are no numbers yet
        raise CallError(
            f"epilogue {name}: {e}; want expressions of its parameters, by the "
            "functions of stretto.epilogues"
        ) from e
    single = isinstance(made, Expr)
    named = {SINGLE: made} if single else made
    if not isinstance(named, Mapping) or not named:
        raise CallError(
            f"epilogue {name} returned a {type(made).__name__}; want an expression, or "
            "a dictionary of them by name"
        )
    for key, value in named.items():
        if not isinstance(value, Expr) or value.op in ("lt", "le", "gt", "ge"):
            raise CallError(
                f"epilogue {name}: output {key!r} is no number of its inputs; want "
                "an expression (of a condition: where(condition, 1, 0))"
            )
        if not str(key).isidentifier():
            raise CallError(f"epilogue {name}: output {key!r}; want an identifier")
    traced = graph([p.name for p in params], list(named.items()))
    return Epilogue(name=name, graph=traced, single=single)
