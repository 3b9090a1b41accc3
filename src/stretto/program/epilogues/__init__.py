"""Epilogues: pointwise and row-wise expressions compiled into a collective's kernel."""

from __future__ import annotations

from stretto.program.epilogues.bind import Bound, Epilogue, epilogue
from stretto.program.epilogues.expr import (
    CASTS,
    REDUCTIONS,
    Expr,
    Graph,
    Node,
    cast,
    exp,
    maximum,
    minimum,
    row_amax,
    row_max,
    row_mean,
    row_sum,
    rsqrt,
    sqrt,
    tanh,
    where,
)
from stretto.program.epilogues.reference import evaluate
from stretto.program.epilogues.spec import Named, Spec, ValueForm, form_of, resolve

__all__ = [
    "CASTS",
    "REDUCTIONS",
    "Bound",
    "Epilogue",
    "Expr",
    "Graph",
    "Named",
    "Node",
    "Spec",
    "ValueForm",
    "cast",
    "epilogue",
    "evaluate",
    "exp",
    "form_of",
    "maximum",
    "minimum",
    "resolve",
    "row_amax",
    "row_max",
    "row_mean",
    "row_sum",
    "rsqrt",
    "sqrt",
    "tanh",
    "where",
]
