"""Calls seen before: the same arrays, checked in a few hundred nanoseconds.

An array is recognised by its identity and a weak reference (so that another array at
the same address is not taken for it), and by what can change in place: its shape and
element type.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any, Final, TypeAlias

import numpy as np

from stretto.executors import Launch
from stretto.runtime.request import Request

__all__ = ["MISS", "Hot", "hot_call"]

MISS: Final = object()
"""What a hot call returns when its arrays are not those it knows."""

Hot: TypeAlias = Callable[[Any, Any], Any]
_Broke: TypeAlias = Callable[[BaseException], BaseException]


def hot_call(
    request: Request, launch: Launch, x: Any, out: Any, broke: _Broke
) -> Hot | None:
    """Return a quick way to repeat a call on (x, out), or None when there is none.

    Executors look only at where an array lies, so contiguous ones pass as they are.
    """
    if request.collective == "barrier":
        return _without_arrays(launch, broke)
    if request.idle is not None or x is None:
        return None
    for operand in request.operands:
        if operand.staged or type(operand.given) is not np.ndarray:
            return None
    if type(x) is not np.ndarray or (out is not None and type(out) is not np.ndarray):
        return None
    if out is not None:
        return _into(request, launch, x, out, broke)
    if request.out is not None and request.out.given is x:
        return _in_place(request, launch, x, broke)
    return _returning_new(request, launch, x, broke)


def _known(array: Any) -> tuple[Callable[[], Any], Any, Any]:
    return weakref.ref(array), array.shape, array.dtype


def _in_place(request: Request, launch: Launch, x: Any, broke: _Broke) -> Hot:
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


def _into(request: Request, launch: Launch, x: Any, out: Any, broke: _Broke) -> Hot:
    """Return a call that writes into another array; some ranks do not write."""
    ref, shape, dtype = _known(out)
    x_ref, x_shape, x_dtype = _known(x)
    reads, writes = request.x is not None, request.out is not None

    def run(x: Any, out: Any) -> Any:
        if ref() is not out or out.shape != shape or out.dtype is not dtype:
            return MISS
        if x_ref() is not x or x.shape != x_shape or x.dtype is not x_dtype:
            return MISS
        try:
            launch(x if reads else None, out if writes else None)
        except BaseException as e:
            raise broke(e) from e.__cause__
        return out if writes else None

    return run


def _returning_new(request: Request, launch: Launch, x: Any, broke: _Broke) -> Hot:
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


def _without_arrays(launch: Launch, broke: _Broke) -> Hot:
    def run(x: Any, out: Any) -> Any:
        try:
            launch(None, None)
        except BaseException as e:
            raise broke(e) from e.__cause__

    return run
