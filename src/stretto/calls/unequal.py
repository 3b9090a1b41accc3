"""The collectives with unequal parts: counts are in elements, results are flat.

Where `counts` is left out, or every rank knows only its own, a small collective before
the call exchanges them. Counts that all ranks know are a part of what a call is known
by the next time.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from stretto.arrays.arrays import Operand, on_gpu, operand
from stretto.calls.counted import CountedCalls
from stretto.calls.hot import MISS
from stretto.calls.request import Caller
from stretto.calls.verbs import Verbs
from stretto.choice.select import Pin, members_of_pin
from stretto.collectives import Array, Operator, storage

__all__ = ["UnequalVerbs"]

Counts = Sequence[int]


def _as_key(counts: Any) -> Any:
    """Return counts as a part of a key; lists and arrays may change, these may not."""
    if isinstance(counts, (tuple, list)) and counts and type(counts[0]) is int:
        return tuple(counts)
    try:
        return tuple(np.ravel(counts).tolist())
    except (TypeError, ValueError):  # the checks that follow say what is wrong
        return ()


class UnequalVerbs(Verbs):
    """Collectives whose parts differ in size."""

    def __init__(self, *args: Any, **options: Any) -> None:
        """Start without arrays for exchanges of counts."""
        self._rows: dict[int, tuple[Array, Array]] = {}
        self._counted: CountedCalls | None = None
        super().__init__(*args, **options)

    def all_gather_v(
        self,
        x: Any,
        counts: Any = None,
        *,
        out: Any = None,
        max_count: int | None = None,
        received: Any = None,
        algorithm: Pin = None,
        stream: Any = None,
        dtype: str | None = None,
    ) -> Any:
        """Give everybody everybody's elements, in rank order; `counts[r]` are r's.

        On the GPU, `counts` is one number, this rank's own (see `all_to_all_v`).
        """
        if on_gpu(counts):
            who = self._caller("all_gather_v", dtype)
            return self._on_gpu().run(
                who,
                "all_gather",
                x,
                counts,
                max_count=max_count,
                out=out,
                received=received,
                algorithm=algorithm,
                stream=stream,
            )
        if counts is None:
            counts = self._counts("all_gather_v", x, dtype, algorithm)
        parts_key = _as_key(counts)
        key = ("all_gather_v", id(x), id(out), parts_key, algorithm, stream, dtype)
        if (done := self._again(key, x, out)) is not MISS:
            return done
        who = self._caller("all_gather_v", dtype, algorithm)
        source = who.take(x, "x")
        parts = self._parts(who, source, counts)
        target = who.target(source, out, (sum(parts),))
        request = who.request("all_gather", source, target, counts=parts, equal=False)
        return self._run(request, algorithm, stream, (key, x, out))

    def gather_v(
        self,
        x: Any,
        counts: Counts | None = None,
        *,
        root: int = 0,
        out: Any = None,
        algorithm: Pin = None,
        stream: Any = None,
        dtype: str | None = None,
    ) -> Any:
        """Give the root everybody's elements, in rank order; the others None."""
        if counts is None:
            counts = self._counts("gather_v", x, dtype, algorithm)
        parts_key = root, _as_key(counts)
        key = ("gather_v", id(x), id(out), parts_key, algorithm, stream, dtype)
        if (done := self._again(key, x, out)) is not MISS:
            return done
        who = self._caller("gather_v", dtype, algorithm)
        params, source = who.root(root), who.take(x, "x")
        parts = self._parts(who, source, counts)
        target = None
        if root == self.rank:
            target = who.target(source, out, (sum(parts),))
        request = who.request(
            "gather", source, target, counts=parts, params=params, equal=False
        )
        return self._run(request, algorithm, stream, (key, x, out))

    def reduce_scatter_v(
        self,
        x: Any,
        counts: Any,
        op: str | Operator = "sum",
        *,
        out: Any = None,
        max_count: int | None = None,
        algorithm: Pin = None,
        stream: Any = None,
        dtype: str | None = None,
    ) -> Any:
        """Combine everybody's `x`; rank r gets its `counts[r]` elements of it.

        On the GPU, `counts` are n x int64, and no larger than `max_count` (see
        `all_to_all_v`); counts[r] is read on rank r.
        """
        if on_gpu(counts):
            who = self._caller("reduce_scatter_v", dtype)
            return self._on_gpu().run(
                who,
                "reduce_scatter",
                x,
                counts,
                max_count=max_count,
                out=out,
                received=None,
                algorithm=algorithm,
                stream=stream,
                op=op,
            )
        parts_key = op, _as_key(counts)
        key = ("reduce_scatter_v", id(x), id(out), parts_key, algorithm, stream, dtype)
        if (done := self._again(key, x, out)) is not MISS:
            return done
        who = self._caller("reduce_scatter_v", dtype, algorithm)
        source, parts = who.take(x, "x"), who.counts(counts, who.num_members)
        if sum(parts) != source.count and who.place is not None:
            raise who.wrong(f"counts sum to {sum(parts)}; x has {source.count}")
        target = who.target(source, out, (who.part(parts),))
        request = who.request(
            "reduce_scatter",
            source,
            target,
            counts=parts,
            op=who.operator(op, source),
            equal=False,
        )
        return self._run(request, algorithm, stream, (key, x, out))

    def scatter_v(
        self,
        x: Any,
        counts: Counts,
        *,
        root: int = 0,
        out: Any = None,
        algorithm: Pin = None,
        stream: Any = None,
        dtype: str | None = None,
    ) -> Any:
        """Give rank r its `counts[r]` elements of the root's `x`.

        Every rank passes the same counts. A rank other than the root passes None as
        `x`, and `out` or `dtype`; the latter makes a NumPy array, so where the root's
        `x` lies on a GPU the others pass an `out` that does.
        """
        parts_key = root, _as_key(counts)
        key = ("scatter_v", id(x), id(out), parts_key, algorithm, stream, dtype)
        if (done := self._again(key, x, out)) is not MISS:
            return done
        who = self._caller("scatter_v", dtype, algorithm)
        params, parts = who.root(root), who.counts(counts, who.num_members)
        mine = (who.part(parts),)
        source = None
        if root == self.rank:
            source = who.take(x, "x")
            if sum(parts) != source.count:
                raise who.wrong(f"counts sum to {sum(parts)}; x has {source.count}")
            target = who.target(source, out, mine)
        elif out is None and dtype is None:
            raise who.wrong("neither out nor dtype; want one, to know the elements")
        else:
            given = np.empty(mine, storage(dtype)) if out is None else out  # type: ignore[arg-type]
            target = who.take(given, "out", written=True)
            if target.count != mine[0]:
                raise who.wrong(f"out has {target.count} elements; want {mine[0]}")
        request = who.request(
            "scatter", source, target, counts=parts, params=params, equal=False
        )
        return self._run(request, algorithm, stream, (key, x, out))

    def all_to_all_v(
        self,
        x: Any,
        counts: Any,
        *,
        out: Any = None,
        max_count: int | None = None,
        received: Any = None,
        algorithm: Pin = None,
        stream: Any = None,
        dtype: str | None = None,
    ) -> Any:
        """Give rank r the `counts[r]` elements of `x` that are for it.

        `counts` are this rank's, and are exchanged; or n x n, row q being rank q's,
        the same on every rank. The result holds the parts of all ranks in order.

        `counts` may lie on the GPU (n x int64, this rank's): they are read there, in
        every replay of a graph anew. Then `max_count` says how large one may be, the
        same on every rank, and `received` (n x int64) is told what came of each rank.
        """
        if on_gpu(counts):
            who = self._caller("all_to_all_v", dtype)
            return self._on_gpu().run(
                who,
                "all_to_all",
                x,
                counts,
                max_count=max_count,
                out=out,
                received=received,
                algorithm=algorithm,
                stream=stream,
            )
        members = members_of_pin(algorithm)
        every, n = _as_key(counts), len(members) or self.num_ranks
        if not members and (len(every) != n * n or n == 1):
            own_row = self._caller("all_to_all_v", dtype).counts(counts, n)
            every = tuple(self._exchange(own_row))
        key = ("all_to_all_v", id(x), id(out), every, algorithm, stream, dtype)
        if (done := self._again(key, x, out)) is not MISS:
            return done
        who = self._caller("all_to_all_v", dtype, algorithm)
        source, matrix = who.take(x, "x"), np.reshape(who.counts(every, n * n), (n, n))
        own = who.part(matrix.sum(axis=1))
        if own != source.count:
            raise who.wrong(f"counts sum to {own}; x has {source.count} elements")
        target = who.target(source, out, (who.part(matrix.sum(axis=0)),))
        flat = tuple(int(c) for c in matrix.ravel())
        request = who.request("all_to_all", source, target, counts=flat, equal=False)
        return self._run(request, algorithm, stream, (key, x, out))

    def _on_gpu(self) -> CountedCalls:
        """Return what makes calls whose counts lie on the GPU."""
        if self._counted is None:
            self._counted = CountedCalls(self)
        return self._counted

    def _parts(self, who: Caller, source: Operand, counts: Counts) -> tuple[int, ...]:
        """Return every rank's count."""
        parts = who.counts(counts, who.num_members)
        if who.part(parts) != source.count:
            raise who.wrong(
                f"counts[{who.place}] is {who.part(parts)}; x has {source.count} "
                f"elements"
            )
        return parts

    def _counts(self, verb: str, x: Any, dtype: str | None, pin: Pin) -> Counts:
        """Return how many elements each member has."""
        if type(x) is np.ndarray:
            own = x.size
        else:
            own = self._caller(verb, dtype).take(x, "x").count
        every = self._exchange((own,))
        return [every[r] for r in members_of_pin(pin) or range(self.num_ranks)]

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
            self._run(request, None, None, (key, row, table))
        found: list[int] = table.ravel().tolist()
        return found
