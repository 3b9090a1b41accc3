"""The collectives as methods: what each takes, and what it gives back.

Every method is collective: all ranks call it, in the same order. Legend: n ranks. A
name that ends in `_v` has unequal parts: counts are in elements, results are flat. One
that ends in `_async` returns at once, a `Work` whose `wait` gives the result; calls
that were started run in that order, a blocking call waits for them, and their arrays
belong to them until they are done.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, TypedDict, Unpack

from stretto.program.collectives import Operator
from stretto.program.epilogues import Bound
from stretto.runtime.calls.methods import verb
from stretto.runtime.calls.requests.verb import Content
from stretto.runtime.choice.select import Pin

Counts = Sequence[int]


class CallOptions(TypedDict, total=False):
    """What verbs that move arrays may be told besides; each is None when it is not."""

    out: Any
    algorithm: Pin
    stream: Any
    dtype: str | None


class Fused(CallOptions, total=False):
    """Of those that an epilogue may follow."""

    epilogue: Bound | None


class Promised(Fused, total=False):
    """Of those whose sums may promise more than their type does."""

    bits: str | None


class Summed(Promised, total=False):
    """Of those whose sums may be told less, too."""

    wire: str | None


class Counted(CallOptions, total=False):
    """Of those whose counts may lie on the GPU."""

    max_count: int | None


class Received(Counted, total=False):
    """Of those that tell what came of each rank."""

    received: Any


@verb(Content.WHOLE, Content.WHOLE)
def all_reduce(
    self: Any, x: Any, op: str | Operator = "sum", **options: Unpack[Summed]
) -> Any:
    """Combine everybody's `x`, in `x` itself or in `out`.

    With `bits="invariant"` an element's bits depend on the ranks' elements alone: not
    on the size of `x`, nor on how the call is run. Without, see `Communicator.bits`.
    With `bits="pairs"`, on 2, 4, 8, ... ranks, they do not depend on how many ranks
    share the parts, either: see `stretto.shards`.
    With `wire="fp8_128"` or `"int8_128"` a byte an element is sent, and a scale for
    each block of 128: see docs/guides/run.md for what that costs in accuracy.
    """


@verb(Content.PART, Content.PARTS)
def all_gather(self: Any, x: Any, **options: Unpack[Fused]) -> Any:
    """Give everybody everybody's `x`: shape (n, *x.shape), in rank order.

    In place, `x` is `out[rank]`.
    """


@verb(Content.PARTS, Content.PART)
def reduce_scatter(
    self: Any, x: Any, op: str | Operator = "sum", **options: Unpack[Promised]
) -> Any:
    """Combine everybody's `x` and give every rank its part of the first axis.

    In place, `out` is the rank's own part of `x`. Of `bits` see `all_reduce`.
    """


@verb(Content.PARTS, Content.PARTS)
def all_to_all(
    self: Any,
    x: Any,
    *,
    split: int = 0,
    concat: int = 0,
    **options: Unpack[CallOptions],
) -> Any:
    """Give every rank its part of everybody's `x`, along axis `split`.

    Parts are joined along axis `concat`, in rank order. By default both are the
    first, and the result has the shape of `x`; in place, `out` is then `x`.
    """


@verb(Content.WHOLE, Content.WHOLE, x_at_root=True)
def broadcast(
    self: Any, x: Any, *, root: int = 0, **options: Unpack[CallOptions]
) -> Any:
    """Give everybody the root's `x`, in `x` itself or in `out`.

    A rank other than the root that passes `out` may pass None as `x`.
    """


@verb(Content.WHOLE, Content.WHOLE, out_at_root=True)
def reduce(
    self: Any,
    x: Any,
    op: str | Operator = "sum",
    *,
    root: int = 0,
    **options: Unpack[CallOptions],
) -> Any:
    """Combine everybody's `x` at the root, in `x` itself or in `out`.

    The root gets the result, the others None; their `x` stays as it is.
    """


@verb(Content.PART, Content.PARTS, out_at_root=True)
def gather(self: Any, x: Any, *, root: int = 0, **options: Unpack[CallOptions]) -> Any:
    """Give the root everybody's `x`: shape (n, *x.shape); the others None.

    `out` counts at the root only.
    """


@verb(Content.PARTS, Content.PART, x_at_root=True)
def scatter(
    self: Any, x: Any = None, *, root: int = 0, **options: Unpack[CallOptions]
) -> Any:
    """Give every rank its part of the first axis of the root's `x`.

    `x` counts at the root only; the others pass `out`, which tells the size.
    """


@verb(Content.WHOLE, Content.WHOLE)
def permute(
    self: Any, x: Any, pairs: Iterable[tuple[int, int]], **options: Unpack[CallOptions]
) -> Any:
    """Move `x` from source to target for every pair (source, target).

    Ranks that nobody targets get zeros. All ranks pass arrays of the same shape.
    """


@verb(Content.NOTHING, Content.NOTHING)
def barrier(self: Any, *, stream: Any = None) -> None:
    """Return when everybody has come."""


@verb(Content.PART, Content.PARTS)
def all_gather_v(
    self: Any, x: Any, counts: Any = None, **options: Unpack[Received]
) -> Any:
    """Give everybody everybody's elements, in rank order; `counts[r]` are r's.

    On the GPU, `counts` is one number, this rank's own (see `all_to_all_v`).
    """


@verb(Content.PARTS, Content.PARTS)
def all_to_all_v(self: Any, x: Any, counts: Any, **options: Unpack[Received]) -> Any:
    """Give rank r the `counts[r]` elements of `x` that are for it.

    `counts` are this rank's, and are exchanged; or n x n, row q being rank q's,
    the same on every rank. The result holds the parts of all ranks in order.

    `counts` may lie on the GPU (n x int64, this rank's): they are read there, in
    every replay of a graph anew. Then `max_count` says how large one may be, the
    same on every rank, and `received` (n x int64) is told what came of each rank.
    """


@verb(Content.PART, Content.PARTS, out_at_root=True)
def gather_v(
    self: Any,
    x: Any,
    counts: Counts | None = None,
    *,
    root: int = 0,
    **options: Unpack[CallOptions],
) -> Any:
    """Give the root everybody's elements, in rank order; the others None."""


@verb(Content.PARTS, Content.PART)
def reduce_scatter_v(
    self: Any,
    x: Any,
    counts: Any,
    op: str | Operator = "sum",
    **options: Unpack[Counted],
) -> Any:
    """Combine everybody's `x`; rank r gets its `counts[r]` elements of it.

    On the GPU, `counts` are n x int64, and no larger than `max_count` (see
    `all_to_all_v`); counts[r] is read on rank r.
    """


@verb(Content.PARTS, Content.PART, x_at_root=True)
def scatter_v(
    self: Any, x: Any, counts: Counts, *, root: int = 0, **options: Unpack[CallOptions]
) -> Any:
    """Give rank r its `counts[r]` elements of the root's `x`.

    Every rank passes the same counts. A rank other than the root passes None as
    `x`, and `out` or `dtype`; the latter makes a NumPy array, so where the root's
    `x` lies on a GPU the others pass an `out` that does.
    """
