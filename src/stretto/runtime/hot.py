"""Calls seen before, on the same arrays or on arrays like them, in a microsecond.

An array is recognised by its identity and a weak reference (so that another array at
the same address is not taken for it), and by what can change in place: its shape and
element type; for tensors the memory itself and its strides, too.

A NumPy array that is new is as good as an earlier one when both have the same shape,
type and flags, and are registered or are not: that is all that a request looks at. The
`Recipe` of such calls holds no array.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

import numpy as np

from stretto.executors import Launch
from stretto.runtime.arrays import HOST, Operand
from stretto.runtime.request import Request

__all__ = ["MISS", "Broke", "Hot", "Recipe", "hot_call", "kind_of", "recipe_of"]

MISS: Final = object()
"""What a hot call returns when its arrays are not those it knows."""

Hot: TypeAlias = Callable[[Any, Any], Any]
Broke: TypeAlias = Callable[[BaseException], BaseException]
Offset: TypeAlias = Callable[[Any], int | None]
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
    recipe = recipe_of(request, launch, x, out, broke=broke)
    if recipe is not None:
        return recipe.bind(x, out)
    given = [a for a in (x, out) if a is not None]
    if not given or request.idle is not None:
        return None
    if any(operand.staged for operand in request.operands):
        return None
    if all(hasattr(a, "data_ptr") for a in given):
        return _tensors(request, launch, x, out, broke, forget)
    return None


def recipe_of(
    request: Request, launch: Launch, x: Any, out: Any, *, broke: Broke
) -> Recipe | None:
    """Return how to repeat a call on other NumPy arrays; None when it has none."""
    result = request.out or request.idle
    made = None if result is None else result.given
    given = [a for a in (x, out, made) if a is not None]
    if not given or not all(type(a) is np.ndarray for a in given):
        return None
    if any(o is not None and o.staged for o in (*request.operands, request.idle)):
        return None
    return Recipe(
        launch=launch,
        reads=request.x is not None,
        writes=request.out is not None,
        idle=request.idle is not None,
        in_place=out is None and result is not None and result.given is x,
        makes=None if result is None or out is not None else result.shape,
        dtype=given[0].dtype,
        broke=broke,
    )


def kind_of(key: tuple[Any, ...], x: Any, out: Any, offset: Offset) -> Any:
    """Return what identifies calls whose arrays differ in nothing that matters.

    `key` is the verb, two identities, and all other arguments. None when arrays must
    be looked at more closely: other types, or arrays that may overlap.
    """
    if x is not None and type(x) is not np.ndarray:
        return None
    if out is not None and type(out) is not np.ndarray:
        return None
    same = x is out
    if not (same or x is None or out is None) and np.may_share_memory(x, out):
        return None
    return key[0], key[3:], same, _traits(x, offset), _traits(out, offset)


def _traits(array: Any, offset: Offset) -> Any:
    if array is None:
        return None
    return array.shape, array.dtype, array.flags.num, offset(array) is None


@dataclass(frozen=True, slots=True, kw_only=True)
class Recipe:
    """How a kind of call is repeated: what goes to the launch, what comes back."""

    launch: Launch
    reads: bool
    """Whether this rank has an input, and whether it has an output."""
    writes: bool
    idle: bool
    """Whether the caller gets zeros, which nobody sends."""
    in_place: bool
    makes: tuple[int, ...] | None
    """The shape of an output that is made here."""
    dtype: np.dtype[Any]
    broke: Broke

    def bind(self, x: Any, out: Any) -> Hot:
        """Return the call on these arrays, whether they are still the same or not."""
        if out is not None:
            return self._into(x, out)
        return self._in_place(x) if self.in_place else self._returning_new(x)

    def _in_place(self, x: Any) -> Hot:
        """Return a call whose output is `x`; some ranks have no input."""
        ref, shape, dtype = _known(x)
        launch, reads, broke = self.launch, self.reads, self.broke

        def run(x: Any, out: Any) -> Any:
            if ref() is not x or x.shape != shape or x.dtype is not dtype:
                return MISS
            try:
                launch(x if reads else None, x)
            except BaseException as e:
                raise broke(e) from e.__cause__
            return x

        return run

    def _into(self, x: Any, out: Any) -> Hot:
        """Return a call that writes into another array; some ranks do not write."""
        ref, shape, dtype = _known(out)
        x_ref, x_shape, x_dtype = _known(x)
        launch, reads, writes = self.launch, self.reads, self.writes
        idle, broke = self.idle, self.broke

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
            if idle:
                out[...] = 0
            return out if writes or idle else None

        return run

    def _returning_new(self, x: Any) -> Hot:
        """Return a call that makes its output, or has none on this rank."""
        ref, shape, dtype = _known(x)
        launch, reads, broke = self.launch, self.reads, self.broke
        makes, made_dtype, idle = self.makes, self.dtype, self.idle

        def run(x: Any, out: Any) -> Any:
            if ref() is not x:
                return MISS
            if x is not None and (x.shape != shape or x.dtype is not dtype):
                return MISS
            result = None if makes is None else np.empty(makes, made_dtype)
            try:
                launch(x if reads else None, None if idle else result)
            except BaseException as e:
                raise broke(e) from e.__cause__
            if idle and result is not None:
                result[...] = 0
            return result

        return run


def _known(array: Any) -> _Known:
    if array is None:
        return (lambda: None), None, None
    return weakref.ref(array), array.shape, array.dtype


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
    repeat = getattr(launch, "repeat", None)
    if repeat is not None and out is None and result is x and request.x is not None:
        return _in_tensor(x, repeat(x), broke, forget)
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


def _in_tensor(
    x: Any, again: Callable[[], None], broke: Broke, forget: Callable[[], object]
) -> Hot:
    """Return a call on one GPU tensor in place, by a launch that knows its address."""
    ref: Callable[[], Any] = weakref.ref(x, lambda _: forget())
    at, count, dtype = x.data_ptr(), x.numel(), x.dtype

    def run(x: Any, out: Any) -> Any:
        if ref() is not x or x.data_ptr() != at or x.numel() != count:
            return MISS
        if x.dtype is not dtype or not x.is_contiguous():
            return MISS
        try:
            again()
        except BaseException as e:
            raise broke(e) from e.__cause__
        return x

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
