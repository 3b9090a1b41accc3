"""Many small arrays as one call: packed, moved once, and unpacked.

In: calls of a with-block. Out: the same results as one call after another, rounded as
one call over all of the elements is. Never: an array that is large enough to be worth
a call of its own.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any

import numpy as np

from stretto.errors import CallError

_LARGE = 1 << 20
"""Bytes from which on an array goes alone: copying it would cost more than a call."""


def coalesced(self: Any) -> Coalesced:
    """Return a block whose calls travel together (collective).

    Its methods are all_reduce, broadcast, all_gather, reduce_scatter and all_to_all,
    with the operators of the verbs; where a result has another shape than `x`, `out` is
    to be given. Nothing moves before the block ends, and then results are in place.
    Calls of a block must not use each other's results. Arrays are NumPy's or torch's,
    on one device.

    >>> with comm.coalesced() as together:  # doctest: +SKIP
    ...     for gradient in gradients:
    ...         together.all_reduce(gradient, op="avg")
    """
    return Coalesced(self)


@dataclass(frozen=True, slots=True)
class _Asked:
    x: Any
    out: Any
    rows_in: int
    rows_out: int

    @property
    def width(self) -> int:
        """Return the elements of a row."""
        return int(math.prod(self.x.shape)) // self.rows_in


@dataclass(slots=True)
class Coalesced:
    """The calls of one block, until it ends."""

    _comm: Any
    _asked: dict[tuple[Any, ...], list[_Asked]] = field(default_factory=dict)
    _is_over: bool = False

    def all_reduce(self, x: Any, op: str = "sum", *, out: Any = None) -> None:
        """Combine everybody's `x`, in `x` itself or in `out`, when the block ends."""
        self._add("all_reduce", x, x if out is None else out, (1, 1), op=op)

    def broadcast(self, x: Any, *, root: int = 0, out: Any = None) -> None:
        """Give everybody the root's `x`, in `x` itself or in `out`."""
        self._add("broadcast", x, x if out is None else out, (1, 1), root=root)

    def all_gather(self, x: Any, *, out: Any) -> None:
        """Give everybody everybody's `x`, in `out` of shape (n, *x.shape)."""
        self._add("all_gather", x, out, (1, self._comm.num_ranks))

    def reduce_scatter(self, x: Any, op: str = "sum", *, out: Any) -> None:
        """Combine everybody's `x`; `out` is this rank's part of the first axis."""
        self._add("reduce_scatter", x, out, (self._comm.num_ranks, 1), op=op)

    def all_to_all(self, x: Any, *, out: Any) -> None:
        """Give every rank its part of everybody's `x`, along the first axis."""
        self._add("all_to_all", x, out, (self._comm.num_ranks,) * 2)

    def _add(
        self, verb: str, x: Any, out: Any, rows: tuple[int, int], **options: Any
    ) -> None:
        who = f"rank {self._comm.rank}: coalesced {verb}"
        if self._is_over:
            raise CallError(f"{who}: its block has ended; want a new comm.coalesced()")
        for name, one in (("x", x), ("out", out)):
            if not isinstance(one, np.ndarray) and not hasattr(one, "new_empty"):
                raise CallError(
                    f"{who}: {name} is a {type(one).__name__}; want NumPy arrays or "
                    f"torch tensors, or a call of its own: comm.{verb}"
                )
        size, want = math.prod(x.shape), math.prod(out.shape)
        if size % rows[0] or want != size // rows[0] * rows[1] or x.dtype != out.dtype:
            raise CallError(
                f"{who}: x has {size} elements of {x.dtype}, out {want} of "
                f"{out.dtype}, on {self._comm.num_ranks} ranks; want what comm.{verb} "
                "takes"
            )
        alone = size // rows[0] * max(rows) * x.dtype.itemsize >= _LARGE
        kind = verb, str(x.dtype), str(getattr(x, "device", "cpu")), *options.items()
        key = (*kind, len(self._asked)) if alone else kind
        self._asked.setdefault(key, []).append(_Asked(x, out, *rows))

    def __enter__(self) -> Coalesced:
        """Begin; calls are gathered until the block ends."""
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Make the calls, one for all that are alike; after an exception, none."""
        self._is_over = True
        if error is not None:
            return
        for (verb, _, _, *options), asked in self._asked.items():
            call = getattr(self._comm, verb)
            named: dict[str, Any] = dict(o for o in options if isinstance(o, tuple))
            if len(asked) == 1:
                (one,) = asked
                call(one.x, **named, **({} if one.x is one.out else {"out": one.out}))
            else:
                _together(call, asked, named)


def _together(call: Any, asked: list[_Asked], named: dict[str, Any]) -> None:
    """Make one call of several: copy in, call, copy out."""
    first, total = asked[0], sum(one.width for one in asked)
    packed = _empty(first.x, (first.rows_in, total))
    at = 0
    for one in asked:
        packed[:, at : at + one.width] = one.x.reshape(one.rows_in, one.width)
        at += one.width
    made = packed
    if (first.rows_in, first.rows_out) == (1, 1):
        call(packed, **named)
    else:
        made = _empty(first.x, (first.rows_out, total))
        flat = packed.reshape(-1) if first.rows_in == 1 else packed
        call(flat, out=made.reshape(-1) if first.rows_out == 1 else made, **named)
    at = 0
    for one in asked:
        one.out[...] = made[:, at : at + one.width].reshape(one.out.shape)
        at += one.width


def _empty(like: Any, shape: tuple[int, int]) -> Any:
    """Return an array of the same library, on the same device."""
    if isinstance(like, np.ndarray):
        return np.empty(shape, like.dtype)
    return like.new_empty(shape)
