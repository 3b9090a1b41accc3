"""Calls seen before: the same arrays, checked in a few hundred nanoseconds.

An array is recognised by its identity and a weak reference (so that another array at
the same address is not taken for it), and by what can change in place: its shape and
element type, and for tensors the memory itself.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any, Final, TypeAlias

import numpy as np

from stretto.executors import Launch
from stretto.runtime.arrays import Operand
from stretto.runtime.request import Request

__all__ = ["MISS", "Hot", "hot_call"]

MISS: Final = object()
"""What a hot call returns when its arrays are not those it knows."""

Hot: TypeAlias = Callable[[Any, Any], Any]
_Broke: TypeAlias = Callable[[BaseException], BaseException]


def hot_call(
    request: Request, launch: Launch, x: Any, out: Any, broke: _Broke
) -> Hot | None:
    """Return a quick way to repeat a call on (x, out), or None when there is none."""
    operands = [o for o in (request.x, request.out) if o is not None]
    if request.idle is not None or any(o.staged for o in operands):
        return None
    if not all(type(o.given) is np.ndarray for o in operands):
        return None
    if any(o.flat.dtype != o.given.dtype for o in operands):
        return None
    if x is not None and type(x) is not np.ndarray:
        return None
    if out is None and (request.out is None or request.out.given is not x):
        return _returning_new(request, launch, x, broke)
    if out is None or out is x:
        return _in_place(request, launch, x, broke)
    return _into(request, launch, x, out, broke)


def _flatten(operand: Operand) -> bool:
    return len(operand.shape) != 1


def _in_place(request: Request, launch: Launch, x: Any, broke: _Broke) -> Hot:
    """Return a call whose output is `x`; input may exist elsewhere only."""
    ref, shape, dtype = weakref.ref(x), x.shape, x.dtype
    reads, flat = request.x is not None, len(x.shape) != 1

    def run(x: Any, out: Any) -> Any:
        if ref() is not x or x.shape != shape or x.dtype is not dtype:
            return MISS
        operand = x.reshape(-1) if flat else x
        try:
            launch(operand if reads else None, operand)
        except BaseException as e:
            raise broke(e)  # noqa: B904
        return x

    return run


def _into(request: Request, launch: Launch, x: Any, out: Any, broke: _Broke) -> Hot:
    """Return a call that writes into another array."""
    ref, shape, dtype = weakref.ref(out), out.shape, out.dtype
    in_ref = (lambda: None) if x is None else weakref.ref(x)
    in_shape, in_dtype = (x.shape, x.dtype) if x is not None else ((), None)
    reads, writes = request.x is not None, request.out is not None

    def run(x: Any, out: Any) -> Any:
        if ref() is not out or out.shape != shape or out.dtype is not dtype:
            return MISS
        if in_ref() is not x:
            return MISS
        if x is not None and (x.shape != in_shape or x.dtype is not in_dtype):
            return MISS
        try:
            launch(
                x.reshape(-1) if reads else None, out.reshape(-1) if writes else None
            )
        except BaseException as e:
            raise broke(e)  # noqa: B904
        return out if writes else None

    return run


def _returning_new(
    request: Request, launch: Launch, x: Any, broke: _Broke
) -> Hot | None:
    """Return a call that makes its output, or has none on this rank."""
    if x is None or request.x is None:
        return None
    ref, shape, dtype = weakref.ref(x), x.shape, x.dtype
    made = request.out.shape if request.out is not None else None

    def run(x: Any, out: Any) -> Any:
        if ref() is not x or x.shape != shape or x.dtype is not dtype:
            return MISS
        result = None if made is None else np.empty(made, dtype)
        try:
            launch(x.reshape(-1), None if result is None else result.reshape(-1))
        except BaseException as e:
            raise broke(e)  # noqa: B904
        return result

    return run
