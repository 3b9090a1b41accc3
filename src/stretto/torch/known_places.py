"""Sums over ranks on tensors of a GPU, known by where they lie.

A model makes new tensors in every step, at the same places: PyTorch gives memory out
again. A call on a place that is known asks a tensor as little as is safe.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any

from torch import Tensor
from torch.nn import Parameter

from stretto.torch.faults import as_torch
from stretto.torch.native import load
from stretto.torch.options import OPERATORS

_AT_ONCE = 8
"""So many places are known from their first call on; later ones from their second:
some come once."""
_SEEN = 1024
"""Places that are remembered for that."""
STARTED = 1 << 8
"""What is added to an operator's number for calls that were started."""
NATIVE = 1 << 9
"""And for those that C++ may begin; native/group.cpp knows it as kNative."""
_PLAIN = (Tensor, Parameter)


class KnownPlaces:
    """What one group knows of its calls on GPUs."""

    def __init__(self, comm: Any) -> None:
        """Calls of a communicator, which forgets them when they must be examined."""
        self._comm = comm
        self._seen: set[tuple[int, int]] = set()
        self._native = load()
        self.calls: dict[tuple[int, int], Any] = comm.calls_by_place
        """By address and number of an operator, among all that the communicator knows;
        False: it must be examined."""

    def learn(
        self, tensor: Tensor, operator: int, pin: Any = None, side: Any = None
    ) -> None:
        """Let a call like the one that was just made be known by its place.

        Of a call that was started: what was asked for with it, and its stream.
        """
        op, number = OPERATORS[operator], operator + (0 if pin is None else STARTED)
        place, seen = (tensor.data_ptr(), number), self._seen
        if place not in seen:
            known = len(seen)
            if known >= _SEEN:
                seen.clear()
            seen.add(place)
            if known >= _AT_ONCE:
                return
        stream = None if side is None else side.cuda_stream
        again = self._comm.repeated_in_place(tensor, op, pin, stream)
        if again is None or type(tensor) not in _PLAIN:
            return
        self.calls[place] = _call_of(tensor, again)
        if side is not None and self._native is not None:
            hear, nth = self._comm.check, side.stream_id
            made = self._native.Place(again, hear, _fail, tensor, nth)
            self.calls[place[0], NATIVE + operator] = made


def _fail(error: Exception) -> None:
    raise as_torch(error) from error.__cause__


def _call_of(tensor: Tensor, again: Callable[..., bool]) -> Callable[..., bool]:
    """Return the call on whatever tensor lies where this one does, and is alike."""
    count, dtype, last = tensor.numel(), tensor.dtype, weakref.ref(tensor)

    def call(x: Tensor) -> bool:
        nonlocal last
        if x.dtype is not dtype or x.numel() != count or not x.is_contiguous():
            return False
        if last() is not x:
            if type(x) not in _PLAIN or x.is_neg() or x.is_conj():
                return False
            last = weakref.ref(x)
        return again()

    return call
