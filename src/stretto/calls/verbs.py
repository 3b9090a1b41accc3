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

import numpy as np

from stretto.arrays.operands import operand
from stretto.calls.forms.counted import CountedCalls
from stretto.calls.requests.layout import MISS, look
from stretto.calls.requests.request import Caller, request_of
from stretto.calls.requests.verb import Holds, Verb, as_key, started, verb
from stretto.calls.runner import CallRunner
from stretto.choice.select import Pin, members_of_pin
from stretto.collectives import Array, Operator
from stretto.epilogues import Bound

__all__ = ["Collectives"]

Counts = Sequence[int]


class Options(TypedDict, total=False):
    """What verbs that move arrays may be told besides; each is None when it is not."""

    out: Any
    algorithm: Pin
    stream: Any
    dtype: str | None


class Fused(Options, total=False):
    """Of those that an epilogue may follow."""

    epilogue: Bound | None


class Counted(Options, total=False):
    """Of those whose counts may lie on the GPU."""

    max_count: int | None


class Received(Counted, total=False):
    """Of those that tell what came of each rank."""

    received: Any


class Collectives(CallRunner):
    """The collectives: each blocks on CPUs, and is stream-ordered on GPUs.

    Common to all: `out` receives the result; `algorithm` is a catalogue name, with the
    words of a schedule after it when wanted; `stream` is a GPU stream; `dtype` says
    that raw 16-bit integers are bfloat16, or bytes a float8. With an `epilogue` the
    call returns what that makes of the result, computed in the same kernel.

    An algorithm of one's own may be among some ranks, its members: n then counts them.
    All ranks call. Who only passes data on gives an array like the others', which tells
    the size and stays as it is (in the `_v` forms an empty one), and gets None.
    """

    def __init__(self, *args: Any, **options: Any) -> None:
        """Start without arrays for exchanges of counts."""
        self._rows: dict[int, tuple[Array, Array]] = {}
        self._counted: CountedCalls | None = None
        super().__init__(*args, **options)

    @verb(Holds.WHOLE, Holds.WHOLE)
    def all_reduce(
        self, x: Any, op: str | Operator = "sum", **options: Unpack[Fused]
    ) -> Any:
        """Combine everybody's `x`, in `x` itself or in `out`."""

    @verb(Holds.PART, Holds.PARTS)
    def all_gather(self, x: Any, **options: Unpack[Fused]) -> Any:
        """Give everybody everybody's `x`: shape (n, *x.shape), in rank order.

        In place, `x` is `out[rank]`.
        """

    @verb(Holds.PARTS, Holds.PART)
    def reduce_scatter(
        self, x: Any, op: str | Operator = "sum", **options: Unpack[Fused]
    ) -> Any:
        """Combine everybody's `x` and give every rank its part of the first axis.

        In place, `out` is the rank's own part of `x`.
        """

    @verb(Holds.PARTS, Holds.PARTS)
    def all_to_all(
        self, x: Any, *, split: int = 0, concat: int = 0, **options: Unpack[Options]
    ) -> Any:
        """Give every rank its part of everybody's `x`, along axis `split`.

        Parts are joined along axis `concat`, in rank order. By default both are the
        first, and the result has the shape of `x`; in place, `out` is then `x`.
        """

    @verb(Holds.WHOLE, Holds.WHOLE, x_at_root=True)
    def broadcast(self, x: Any, *, root: int = 0, **options: Unpack[Options]) -> Any:
        """Give everybody the root's `x`, in `x` itself or in `out`.

        A rank other than the root that passes `out` may pass None as `x`.
        """

    @verb(Holds.WHOLE, Holds.WHOLE, out_at_root=True)
    def reduce(
        self,
        x: Any,
        op: str | Operator = "sum",
        *,
        root: int = 0,
        **options: Unpack[Options],
    ) -> Any:
        """Combine everybody's `x` at the root, in `x` itself or in `out`.

        The root gets the result, the others None; their `x` stays as it is.
        """

    @verb(Holds.PART, Holds.PARTS, out_at_root=True)
    def gather(self, x: Any, *, root: int = 0, **options: Unpack[Options]) -> Any:
        """Give the root everybody's `x`: shape (n, *x.shape); the others None.

        `out` counts at the root only.
        """

    @verb(Holds.PARTS, Holds.PART, x_at_root=True)
    def scatter(
        self, x: Any = None, *, root: int = 0, **options: Unpack[Options]
    ) -> Any:
        """Give every rank its part of the first axis of the root's `x`.

        `x` counts at the root only; the others pass `out`, which tells the size.
        """

    @verb(Holds.WHOLE, Holds.WHOLE)
    def permute(
        self, x: Any, pairs: Iterable[tuple[int, int]], **options: Unpack[Options]
    ) -> Any:
        """Move `x` from source to target for every pair (source, target).

        Ranks that nobody targets get zeros. All ranks pass arrays of the same shape.
        """

    @verb(Holds.NOTHING, Holds.NOTHING)
    def barrier(self, *, stream: Any = None) -> None:
        """Return when everybody has come."""

    @verb(Holds.PART, Holds.PARTS)
    def all_gather_v(
        self, x: Any, counts: Any = None, **options: Unpack[Received]
    ) -> Any:
        """Give everybody everybody's elements, in rank order; `counts[r]` are r's.

        On the GPU, `counts` is one number, this rank's own (see `all_to_all_v`).
        """

    @verb(Holds.PARTS, Holds.PARTS)
    def all_to_all_v(self, x: Any, counts: Any, **options: Unpack[Received]) -> Any:
        """Give rank r the `counts[r]` elements of `x` that are for it.

        `counts` are this rank's, and are exchanged; or n x n, row q being rank q's,
        the same on every rank. The result holds the parts of all ranks in order.

        `counts` may lie on the GPU (n x int64, this rank's): they are read there, in
        every replay of a graph anew. Then `max_count` says how large one may be, the
        same on every rank, and `received` (n x int64) is told what came of each rank.
        """

    @verb(Holds.PART, Holds.PARTS, out_at_root=True)
    def gather_v(
        self,
        x: Any,
        counts: Counts | None = None,
        *,
        root: int = 0,
        **options: Unpack[Options],
    ) -> Any:
        """Give the root everybody's elements, in rank order; the others None."""

    @verb(Holds.PARTS, Holds.PART)
    def reduce_scatter_v(
        self,
        x: Any,
        counts: Any,
        op: str | Operator = "sum",
        **options: Unpack[Counted],
    ) -> Any:
        """Combine everybody's `x`; rank r gets its `counts[r]` elements of it.

        On the GPU, `counts` are n x int64, and no larger than `max_count` (see
        `all_to_all_v`); counts[r] is read on rank r.
        """

    @verb(Holds.PARTS, Holds.PART, x_at_root=True)
    def scatter_v(
        self, x: Any, counts: Counts, *, root: int = 0, **options: Unpack[Options]
    ) -> Any:
        """Give rank r its `counts[r]` elements of the root's `x`.

        Every rank passes the same counts. A rank other than the root passes None as
        `x`, and `out` or `dtype`; the latter makes a NumPy array, so where the root's
        `x` lies on a GPU the others pass an `out` that does.
        """

    all_reduce_async = started(all_reduce)
    all_gather_async = started(all_gather)
    reduce_scatter_async = started(reduce_scatter)
    all_to_all_async = started(all_to_all)
    broadcast_async = started(broadcast)
    reduce_async = started(reduce)
    gather_async = started(gather)
    scatter_async = started(scatter)
    permute_async = started(permute)
    barrier_async = started(barrier)
    all_gather_v_async = started(all_gather_v)
    all_to_all_v_async = started(all_to_all_v)
    gather_v_async = started(gather_v)
    reduce_scatter_v_async = started(reduce_scatter_v)
    scatter_v_async = started(scatter_v)

    def _call(
        self,
        verb: Verb,
        key: tuple[Any, ...],
        x: Any,
        out: Any,
        values: tuple[Any, ...],
        epilogue: Bound | None = None,
    ) -> Any:
        """Repeat a call like an earlier one; or check it, run it, and know it then."""
        seen, calls = None, self._calls
        if self._known is calls.by_arrays:
            done = MISS
            if epilogue is not None:
                done = calls.epilogues.repeat(key, x, out, epilogue)
            elif (seen := look(key, x, out, self._sessions)) is not None:
                how = calls.by_layout.get(seen[0])
                done = MISS if how is None else calls.repeat(how, key, x, out, seen)
            if done is not MISS:
                return done
        given = dict(zip(verb.parameters, values, strict=True))
        pin = given.get("algorithm")
        who = Caller(
            rank=self.rank,
            num_ranks=self.num_ranks,
            verb=verb.name,
            dtype=given.get("dtype"),
            members=() if pin is None or "pairs" in given else members_of_pin(pin),
            seen=seen,
        )
        request = request_of(verb, who, given)
        call = key, x, out, seen
        return self._run(request, pin, given.get("stream"), call, epilogue)

    def _call_counted(self, verb: Verb, values: tuple[Any, ...]) -> Any:
        """Make a call whose counts lie on the GPU."""
        given = dict(zip(verb.parameters, values, strict=True))
        if self._counted is None:
            self._counted = CountedCalls(self)
        who = self._caller(verb.name, given.pop("dtype"))
        return self._counted.run(who, verb.collective, **given)

    # Counts that some ranks do not know: a small collective before the call.

    def _own_counts(self, verb: Verb, x: Any, dtype: str | None, pin: Pin) -> Counts:
        """Return how many elements each member has, when a rank knows its own."""
        if type(x) is np.ndarray:
            own = x.size
        else:
            own = self._caller(verb.name, dtype).take(x, "x").count
        every = self._exchange((own,))
        return [every[r] for r in members_of_pin(pin) or range(self.num_ranks)]

    def _every_count(self, counts: Any, dtype: str | None, pin: Pin) -> Any:
        """Return n x n counts of an all_to_all; given are those, or this rank's n."""
        members = members_of_pin(pin)
        every, n = as_key(counts), len(members) or self.num_ranks
        if not members and (len(every) != n * n or n == 1):
            own_row = self._caller("all_to_all_v", dtype).counts(counts, n)
            every = tuple(self._exchange(own_row))
        return every

    def _exchange(self, own: Sequence[int]) -> list[int]:
        """Return every rank's counts, one rank's after the other's."""
        rows = self._rows.get(len(own))
        if rows is None:
            table = np.empty((self.num_ranks, len(own)), np.int64)
            rows = self._rows[len(own)] = np.empty(len(own), np.int64), table
        row, table = rows
        row[:] = own
        key = ("exchange of counts", id(row), id(table))
        if self._again(key, row, table) is MISS:
            who = self._caller("exchange of counts", None)
            request = who.request(
                "all_gather",
                operand(row, "counts", written=False, dtype=None),
                operand(table, "counts", written=True, dtype=None),
                counts=(row.size,) * self.num_ranks,
            )
            self._run(request, None, None, (key, row, table, None))
        found: list[int] = table.ravel().tolist()
        return found
