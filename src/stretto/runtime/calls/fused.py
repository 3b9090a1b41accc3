"""A collective with an epilogue: its arrays checked, its kind found, its outputs made.

The result is looked at as rows: its last axis, or `row=`. Inputs meet it by NumPy's
broadcasting; outputs are new arrays, or what `into()` names.
"""

from __future__ import annotations

import math
import numbers
import sys
from dataclasses import dataclass
from typing import Any

import numpy as np

from stretto.arrays import CPU, GPU, Operand, fresh, operand
from stretto.errors import CallError
from stretto.program.collectives import storage
from stretto.program.epilogues import (
    CASTS,
    Bound,
    Named,
    Spec,
    ValueForm,
    form_of,
    resolve,
)
from stretto.runtime.calls.requests.request import Caller, Request


@dataclass(frozen=True, slots=True, kw_only=True)
class Fused:
    """An epilogue of one call."""

    spec: Spec
    inputs: tuple[Any, ...]
    """Operands, and numbers."""
    outputs: tuple[Operand, ...]
    single: bool

    @property
    def extra(self) -> tuple[Any, ...]:
        """Return what a launch takes beside the collective's arrays."""
        given = [i.flat if isinstance(i, Operand) else i for i in self.inputs]
        return (*given, *(o.flat for o in self.outputs))


def fuse(calls: Any, request: Request, bound: Bound) -> Fused:
    """Return an epilogue bound to a call's result."""
    who: Caller = calls._caller(request.collective, None, request.pin)
    if who.members:
        raise who.wrong(
            f"an epilogue, by an algorithm among {who.members}; want one among all "
            f"ranks"
        )
    if not isinstance(bound, Bound):
        raise who.wrong(
            f"epilogue={type(bound).__name__}; want what @epilogue made, called with "
            "its inputs: epilogue=add_rms_norm(residual=..., eps=1e-6)"
        )
    result = request.out
    assert result is not None, "verbs with an epilogue give every rank a result"
    if result.dtype not in CASTS:
        raise who.wrong(
            f"epilogue {bound.name} of {result.dtype} elements; want {', '.join(CASTS)}"
        )
    row = bound.row or (result.shape[-1] if result.shape else 1)
    if row and result.count % row:
        raise who.wrong(
            f"epilogue {bound.name}: a result of shape {result.shape} has no whole "
            f"rows of {row}; want row= to divide {result.count}"
        )
    inputs, named = [], {}
    for name, given in bound.inputs.items():
        one, said = _input(name, given, result, row, who)
        inputs.append((name, one))
        named[name] = said
    spec = resolve(bound.graph, named, dtype=result.dtype, row=row)
    counts = request.call.counts
    if spec.row and any(count % spec.row for count in counts):
        raise who.wrong(
            f"epilogue {bound.name}: parts of {max(counts)} elements divide "
            f"rows of {spec.row}; want whole rows on every rank"
        )
    order = {n.name: i for i, n in enumerate(spec.inputs)}
    inputs.sort(key=lambda pair: order[pair[0]])
    found = tuple(one for _, one in inputs)
    outputs = tuple(_output(n, bound, result, row, who) for n in spec.outputs)
    _keep_apart(request, spec, found, outputs, who)
    return Fused(spec=spec, inputs=found, outputs=outputs, single=bound.single)


def _input(
    name: str, given: Any, result: Operand, row: int, who: Caller
) -> tuple[Any, Named]:
    if isinstance(given, numbers.Real):
        try:
            return float(given), Named(name, "", ValueForm.SCALAR)
        except OverflowError:
            raise who.wrong(
                f"epilogue: {name}={given!r:.60}; want a number that a float holds"
            ) from None
    one = _raw(who.take(given, name), result)
    if one.device != result.device:
        raise who.wrong(
            f"epilogue: {name} lies on {one.device}, the result on {result.device}; "
            "want one"
        )
    if one.dtype not in CASTS:
        raise who.wrong(f"epilogue: {name} has {one.dtype}; want {', '.join(CASTS)}")
    try:
        form = form_of(name, one.shape, result.shape, row)
    except CallError as e:
        raise who.wrong(str(e)) from None
    return one, Named(name, one.dtype, form)


def _raw(one: Operand, result: Operand) -> Operand:
    """Return raw bits as what they stand for: elements of the result's type."""
    raw = one.dtype not in CASTS and storage(one.dtype) == storage(result.dtype)
    if not raw or one.device != CPU:
        return one
    what = f"epilogue ({one.dtype})"
    return operand(one.given, what, written=False, dtype=result.dtype)


def _output(
    named: Named, bound: Bound, result: Operand, row: int, who: Caller
) -> Operand:
    shape = result.shape
    if named.form is ValueForm.COLUMN:
        own_row = bound.row is None and shape
        shape = (*shape[:-1], 1) if own_row else (result.count // row if row else 0, 1)
    given = (bound.outputs or {}).get(named.name)
    if given is None:
        given = _new(result, shape, named.dtype)
    what = f"rank {who.rank}: {who.verb}(epilogue: {named.name})"
    out = operand(given, what, written=True, dtype=None)
    bits = storage(out.dtype) == storage(named.dtype) and out.device == CPU
    if out.dtype != named.dtype and bits:
        out = operand(given, what, written=True, dtype=named.dtype)
    if out.dtype != named.dtype:
        raise who.wrong(
            f"epilogue: output {named.name} has {out.dtype}; want {named.dtype}, or "
            f"cast({named.name}, {out.dtype!r}) in the function"
        )
    if out.count != math.prod(shape) or out.device != result.device:
        raise who.wrong(
            f"epilogue: output {named.name} has shape {out.shape} on {out.device}; "
            f"want {shape} on {result.device}"
        )
    return out


def _new(like: Operand, shape: tuple[int, ...], dtype: str) -> Any:
    """Return a new array of the result's kind and another type."""
    if dtype == like.dtype:
        return fresh(like, shape)
    given = like.given
    if hasattr(given, "new_empty"):
        kind = getattr(sys.modules["torch"], dtype)
        return given.detach().new_empty(shape, dtype=kind)
    if like.device == GPU:
        raise CallError(
            f"an output of {dtype} for a {type(given).__name__} on a GPU; pass one of "
            f"shape {shape} by .into(...)"
        )
    try:
        return np.empty(shape, np.dtype(dtype))  # native, or known through ml_dtypes
    except TypeError:
        return np.empty(shape, storage(dtype))


def _keep_apart(
    request: Request,
    spec: Spec,
    inputs: tuple[Any, ...],
    outputs: tuple[Operand, ...],
    who: Caller,
) -> None:
    """Refuse outputs that overlap anything but an input they replace in place.

    And inputs that the result replaces: some would be read before, others after.
    """
    result = request.out
    assert result is not None, "verbs with an epilogue give every rank a result"
    held = [("x", request.x, False), ("the result", result, False)]
    for named, one in zip(spec.inputs, inputs, strict=True):
        if not isinstance(one, Operand):
            continue
        held.append((named.name, one, named.form is ValueForm.ELEMENT))
        (start, end), (a, b) = one.span, result.span
        if start < b and a < end:
            raise who.wrong(
                f"epilogue: {named.name} overlaps the result, which replaces it; want "
                "memory of its own, or out= another array"
            )
    for named, out in zip(spec.outputs, outputs, strict=True):
        start, end = out.span
        for name, other, replaceable in held:
            if other is None:
                continue
            a, b = other.span
            same = replaceable and (a, b) == (start, end) and other.count == out.count
            if start < b and a < end and not same:
                raise who.wrong(
                    f"epilogue: output {named.name} overlaps {name}; want memory of "
                    "its own, or all of an input of the same shape and type"
                )
        held.append((f"output {named.name}", out, False))
