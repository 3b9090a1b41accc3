"""Calls seen before: the same arrays, checked in a few hundred nanoseconds.

An array is recognised by its identity and a weak reference (so that another array at
the same address is not taken for it), and by what can change in place: its shape and
element type; for tensors the memory itself and its strides, too.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any, Final, TypeAlias

import numpy as np

from stretto.executors import Launch
from stretto.runtime.arrays import HOST, Operand
from stretto.runtime.request import Request

__all__ = ["MISS", "Broke", "Hot", "hot_call"]

MISS: Final = object()
"""What a hot call returns when its arrays are not those it knows."""

Hot: TypeAlias = Callable[[Any, Any], Any]
Broke: TypeAlias = Callable[[BaseException], BaseException]
_Known: TypeAlias = tuple[Callable[[], Any], Any, Any]


def hot_call(
    request: Request,
    launch: Launch,
    x: Any,
    out: Any,
    *,
    broke: Broke,
    forget: Callable[[], object],
) -> Hot | None:
    """Return a quick way to repeat a call on (x, out), or None when there is none.

    Executors look only at where an array lies, so contiguous ones pass as they are.
    `forget` drops the call when an array of it has died.
    """
    if request.collective == "barrier":
        return _without_arrays(launch, broke)
    if request.idle is not None or (x is None and out is None):
        return None
    if any(operand.staged for operand in request.operands):
        return None
    given = [a for a in (x, out) if a is not None]
    if all(type(a) is np.ndarray for a in given):
        if out is not None:
            return _into(request, launch, x, out, broke)
        if request.out is not None and request.out.given is x:
            return _in_place(request, launch, x, broke)
        return _returning_new(request, launch, x, broke)
    if all(hasattr(a, "data_ptr") for a in given):
        return _tensors(request, launch, x, out, broke, forget)
    return None


def _known(array: Any) -> _Known:
    if array is None:
        return (lambda: None), None, None
    return weakref.ref(array), array.shape, array.dtype


def _in_place(request: Request, launch: Launch, x: Any, broke: Broke) -> Hot:
    """Return a call whose output is `x`; some ranks have no input."""
    ref, shape, dtype = _known(x)
    reads = request.x is not None

    def run(x: Any, out: Any) -> Any:
        if ref() is not x or x.shape != shape or x.dtype is not dtype:
            return MISS
        try:
            launch(x if reads else None, x)
        except BaseException as e:
            raise broke(e) from e.__cause__
        return x

    return run


def _into(request: Request, launch: Launch, x: Any, out: Any, broke: Broke) -> Hot:
    """Return a call that writes into another array; some ranks do not write."""
    ref, shape, dtype = _known(out)
    x_ref, x_shape, x_dtype = _known(x)
    reads, writes = request.x is not None, request.out is not None

    def run(x: Any, out: Any) -> Any:
        if ref() is not out or out.shape != shape or out.dtype is not dtype:
            return MISS
        if x_ref() is not x:
            return MISS
        if x is not None and (x.shape != x_shape or x.dtype is not x_dtype):
            return MISS
        try:
            launch(x if reads else None, out if writes else None)
        except BaseException as e:
            raise broke(e) from e.__cause__
        return out if writes else None

    return run


def _returning_new(request: Request, launch: Launch, x: Any, broke: Broke) -> Hot:
    """Return a call that makes its output, or has none on this rank."""
    ref, shape, dtype = _known(x)
    reads = request.x is not None
    made = None if request.out is None else request.out.shape

    def run(x: Any, out: Any) -> Any:
        if ref() is not x or x.shape != shape or x.dtype is not dtype:
            return MISS
        result = None if made is None else np.empty(made, dtype)
        try:
            launch(x if reads else None, result)
        except BaseException as e:
            raise broke(e) from e.__cause__
        return result

    return run


def _without_arrays(launch: Launch, broke: Broke) -> Hot:
    def run(x: Any, out: Any) -> Any:
        try:
            launch(None, None)
        except BaseException as e:
            raise broke(e) from e.__cause__

    return run


def _tensors(
    request: Request,
    launch: Launch,
    x: Any,
    out: Any,
    broke: Broke,
    forget: Callable[[], object],
) -> Hot | None:
    """Return a call on tensors; their memory may be replaced, so it is looked at."""
    result = None if request.out is None else request.out.given
    if result is not None and result is not x and result is not out:
        return None
    is_x, is_out = _recogniser(x, forget), _recogniser(out, forget)
    source, target = _view(request.x), _view(request.out)
    reads, writes_x = request.x is not None, result is x
    writes = request.out is not None

    def run(x: Any, out: Any) -> Any:
        if not is_x(x) or not is_out(out):
            return MISS
        to = x if writes_x else out
        try:
            launch(
                x if reads and source is None else source,
                to if writes and target is None else target,
            )
        except BaseException as e:
            raise broke(e) from e.__cause__
        return to if writes else None

    return run


def _view(operand: Operand | None) -> Any:
    """Return the NumPy view of a CPU tensor; GPU tensors are passed themselves."""
    return None if operand is None or operand.device != HOST else operand.flat


def _recogniser(tensor: Any, forget: Callable[[], object]) -> Callable[[Any], bool]:
    if tensor is None:
        return lambda other: other is None
    ref: Callable[[], Any] = weakref.ref(tensor, lambda _: forget())
    at, shape, dtype = tensor.data_ptr(), tensor.shape, tensor.dtype

    def is_it(other: Any) -> bool:
        return (
            other is not None
            and ref() is other
            and other.data_ptr() == at
            and other.shape == shape
            and other.dtype is dtype
            and other.is_contiguous()
        )

    return is_it
