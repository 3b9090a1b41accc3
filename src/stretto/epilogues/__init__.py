"""Epilogues: pointwise and row-wise expressions compiled into a collective's kernel."""

from __future__ import annotations

from stretto.epilogues.bind import Bound, Epilogue, epilogue
from stretto.epilogues.expr import (
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
from stretto.epilogues.reference import evaluate
from stretto.epilogues.spec import Form, Named, Spec, form_of, resolve

__all__ = [
    "CASTS",
    "REDUCTIONS",
    "Bound",
    "Epilogue",
    "Expr",
    "Form",
    "Graph",
    "Named",
    "Node",
    "Spec",
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
