"""Calls seen before, on the very same arrays, in a third of a microsecond.

An array is recognised by its identity and a weak reference (so that another array at
the same address is not taken for it), and by what can change in place: its shape and
element type, and whether it is contiguous and writable; for tensors the memory itself,
too. Other arrays than these, however much alike, are for by_layout.py.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

import numpy as np

from stretto.executors import Launch, Session

__all__ = [
    "MISS",
    "Again",
    "Broke",
    "KnownCall",
    "clear",
    "known_arrays",
    "known_barrier",
    "known_places",
]

MISS: Final = object()
"""What a known call returns when its arrays are not those it knows."""

KnownCall: TypeAlias = Callable[[Any, Any], Any]
Broke: TypeAlias = Callable[[BaseException], BaseException]
_Known: TypeAlias = tuple[Callable[[], Any], Any, Any, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class Again:
    """What is done again: what goes to the launch, what comes back."""

    session: Session
    launch: Launch
    broke: Broke
    """What to raise of what a launch raises."""
    reads: bool
    """Whether this rank has an input, and whether it has an output."""
    writes: bool
    idle: bool
    """Whether the caller gets zeros, which nobody sends."""
    in_place: bool
    """Whether `x` is given back, and no `out` was passed."""
    make: Callable[[Any], Any] | None
    """Returns a new output for `x`, where the call makes one."""


def known_barrier(launch: Launch, broke: Broke) -> KnownCall:
    """Return a call without arrays."""

    def run(x: Any, out: Any) -> Any:
        try:
            launch(None, None)
        except BaseException as e:
            raise broke(e) from e.__cause__

    return run


# NumPy arrays, which launches on the CPU take as they are.


def known_arrays(again: Again, x: Any, out: Any) -> KnownCall:
    """Return the call on these NumPy arrays."""
    if again.in_place:
        return _in_array(again, x)
    if again.make is not None:
        return _into_new_array(again, x, again.make)
    return _into_array(again, x, out)


def _in_array(again: Again, x: Any) -> KnownCall:
    """Return a call whose output is `x`; some ranks have no input."""
    ref, _, dtype, flags = _known(x)
    size = x.size  # all that matters of a shape, where nothing is divided
    launch, reads, broke = again.launch, again.reads, again.broke

    def run(x: Any, out: Any) -> Any:
        if ref() is not x or x.size != size or x.dtype is not dtype:
            return MISS
        if x.flags.num != flags:
            return MISS
        try:
            launch(x if reads else None, x)
        except BaseException as e:
            raise broke(e) from e.__cause__
        return x

    return run


def _into_array(again: Again, x: Any, out: Any) -> KnownCall:
    """Return a call that writes into another array, or has no output here."""
    ref, shape, dtype, flags = _known(x)
    out_ref, _, out_dtype, out_flags = _known(out)
    size = None if out is None else out.size
    launch, reads, writes = again.launch, again.reads, again.writes
    idle, broke = again.idle, again.broke

    def run(x: Any, out: Any) -> Any:
        if ref() is not x or out_ref() is not out:
            return MISS
        if x is not None and (
            x.shape != shape or x.dtype is not dtype or x.flags.num != flags
        ):
            return MISS
        if out is not None and (
            out.size != size or out.dtype is not out_dtype or out.flags.num != out_flags
        ):
            return MISS
        try:
            launch(x if reads else None, out if writes else None)
        except BaseException as e:
            raise broke(e) from e.__cause__
        if idle:
            clear(out)
        return out if writes or idle else None

    return run


def _into_new_array(again: Again, x: Any, make: Callable[[Any], Any]) -> KnownCall:
    """Return a call that makes its output."""
    ref, shape, dtype, flags = _known(x)
    launch, reads, idle, broke = again.launch, again.reads, again.idle, again.broke

    def run(x: Any, out: Any) -> Any:
        if ref() is not x:
            return MISS
        if x is not None and (
            x.shape != shape or x.dtype is not dtype or x.flags.num != flags
        ):
            return MISS
        result = make(x)
        try:
            launch(x if reads else None, None if idle else result)
        except BaseException as e:
            raise broke(e) from e.__cause__
        if idle:
            clear(result)
        return result

    return run


def clear(array: Any) -> None:
    """Write zeros to a NumPy array, be it of raw bytes, to which 0 is no number."""
    array[...] = np.zeros((), array.dtype)


def _known(array: Any) -> _Known:
    if array is None:
        return (lambda: None), None, None, 0
    return weakref.ref(array), array.shape, array.dtype, array.flags.num


# Tensors, and arrays of our own on a GPU, whose launches are told where they lie.


def known_places(
    again: Again, x: Any, out: Any, source: Any, target: Any
) -> KnownCall | None:
    """Return the call on these arrays, whose launch is given a source and a target.

    None where results are made anew, and where arrays cannot be recognised.
    """
    if again.make is not None:
        return None
    to = source if again.in_place else target
    places = source if again.reads else None, to if again.writes else None
    launch = again.session.repeated(again.launch, *places)
    tells = hasattr(x if x is not None else out, "data_ptr")
    if again.in_place and tells:
        return _in_tensor(x, launch, again.broke)
    is_x, is_out = _recogniser(x), _recogniser(out)
    if is_x is None or is_out is None:
        return None
    return _between(again, launch, is_x, is_out)


def _in_tensor(x: Any, launch: Callable[[], None], broke: Broke) -> KnownCall:
    """Return a call on one tensor in place; its memory may be replaced."""
    ref: Callable[[], Any] = weakref.ref(x)
    at, count, dtype = x.data_ptr(), x.numel(), x.dtype

    def run(x: Any, out: Any) -> Any:
        if ref() is not x or x.data_ptr() != at or x.numel() != count:
            return MISS
        if x.dtype is not dtype or not x.is_contiguous():
            return MISS
        try:
            launch()
        except BaseException as e:
            raise broke(e) from e.__cause__
        return x

    return run


def _between(
    again: Again,
    launch: Callable[[], None],
    is_x: Callable[[Any], bool],
    is_out: Callable[[Any], bool],
) -> KnownCall:
    """Return a call from one array to another, or with one of them."""
    in_place, writes, broke = again.in_place, again.writes, again.broke

    def run(x: Any, out: Any) -> Any:
        if not is_x(x) or not is_out(out):
            return MISS
        try:
            launch()
        except BaseException as e:
            raise broke(e) from e.__cause__
        if in_place:
            return x
        return out if writes else None

    return run


def _recogniser(array: Any) -> Callable[[Any], bool] | None:
    """Return what tells whether an array is still this one; None: nothing can."""
    if array is None:
        return lambda other: other is None
    if type(array).__module__.startswith("stretto."):
        mine = weakref.ref(array)
        return lambda other: mine() is other
    if not hasattr(array, "data_ptr"):
        return None
    ref: Callable[[], Any] = weakref.ref(array)
    at, shape, dtype = array.data_ptr(), array.shape, array.dtype

    def is_it(other: Any) -> bool:
        return (
            ref() is other
            and other is not None
            and other.data_ptr() == at
            and other.shape == shape
            and other.dtype is dtype
            and other.is_contiguous()
        )

    return is_it
