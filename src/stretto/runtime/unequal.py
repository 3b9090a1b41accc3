"""The collectives with unequal parts: counts are in elements, results are flat.

Where `counts` is left out, or every rank knows only its own, a small collective before
the call exchanges them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from stretto.collectives import Operator, storage
from stretto.runtime.arrays import Operand, operand
from stretto.runtime.request import Caller
from stretto.runtime.select import Pin
from stretto.runtime.verbs import Verbs

__all__ = ["UnequalVerbs"]

Counts = Sequence[int]


class UnequalVerbs(Verbs):
    """Collectives whose parts differ in size."""

    def all_gather_v(
        self,
        x: Any,
        counts: Counts | None = None,
        *,
        out: Any = None,
        algorithm: Pin = None,
        stream: Any = None,
        dtype: str | None = None,
    ) -> Any:
        """Give everybody everybody's elements, in rank order; `counts[r]` are r's."""
        who = self._caller("all_gather_v", dtype)
        source = who.take(x, "x")
        parts = self._parts(who, source, counts)
        target = who.target(source, out, (sum(parts),))
        request = who.request("all_gather", source, target, counts=parts, equal=False)
        return self._run(request, algorithm, stream)

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
        who = self._caller("gather_v", dtype)
        params, source = who.root(root), who.take(x, "x")
        parts = self._parts(who, source, counts)
        target = None
        if root == self.rank:
            target = who.target(source, out, (sum(parts),))
        request = who.request(
            "gather", source, target, counts=parts, params=params, equal=False
        )
        return self._run(request, algorithm, stream)

    def reduce_scatter_v(
        self,
        x: Any,
        counts: Counts,
        op: str | Operator = "sum",
        *,
        out: Any = None,
        algorithm: Pin = None,
        stream: Any = None,
        dtype: str | None = None,
    ) -> Any:
        """Combine everybody's `x`; rank r gets its `counts[r]` elements of it."""
        who = self._caller("reduce_scatter_v", dtype)
        source, parts = who.take(x, "x"), who.counts(counts, self.num_ranks)
        if sum(parts) != source.count:
            raise who.wrong(f"counts sum to {sum(parts)}; x has {source.count}")
        target = who.target(source, out, (parts[self.rank],))
        request = who.request(
            "reduce_scatter",
            source,
            target,
            counts=parts,
            op=who.operator(op, source),
            equal=False,
        )
        return self._run(request, algorithm, stream)

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
        `x`, and `out` or `dtype`.
        """
        who = self._caller("scatter_v", dtype)
        params, parts = who.root(root), who.counts(counts, self.num_ranks)
        mine = (parts[self.rank],)
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
        return self._run(request, algorithm, stream)

    def all_to_all_v(
        self,
        x: Any,
        counts: Any,
        *,
        out: Any = None,
        algorithm: Pin = None,
        stream: Any = None,
        dtype: str | None = None,
    ) -> Any:
        """Give rank r the `counts[r]` elements of `x` that are for it.

        `counts` are this rank's, and are exchanged; or n x n, row q being rank q's,
        the same on every rank. The result holds the parts of all ranks in order.
        """
        who = self._caller("all_to_all_v", dtype)
        source, n = who.take(x, "x"), self.num_ranks
        if np.size(counts) == n * n and n > 1:
            matrix = np.reshape(who.counts(counts, n * n), (n, n))
        else:
            matrix = self._exchange(who.counts(counts, n))
        own = int(matrix[self.rank].sum())
        if own != source.count:
            raise who.wrong(f"counts sum to {own}; x has {source.count} elements")
        target = who.target(source, out, (int(matrix[:, self.rank].sum()),))
        every = tuple(int(c) for c in matrix.ravel())
        request = who.request("all_to_all", source, target, counts=every, equal=False)
        return self._run(request, algorithm, stream)

    def _parts(
        self, who: Caller, source: Operand, counts: Counts | None
    ) -> tuple[int, ...]:
        """Return every rank's count, asking for them when they were not given."""
        if counts is None:
            return tuple(int(c) for c in self._exchange((source.count,)).ravel())
        parts = who.counts(counts, self.num_ranks)
        if parts[self.rank] != source.count:
            raise who.wrong(
                f"counts[{self.rank}] is {parts[self.rank]}; x has {source.count} "
                f"elements"
            )
        return parts

    def _exchange(self, own: Sequence[int]) -> Any:
        """Return every rank's counts, one row a rank."""
        who = self._caller("exchange of counts", None)
        row = np.asarray(own, np.int64)
        table = np.empty((self.num_ranks, row.size), np.int64)
        request = who.request(
            "all_gather",
            operand(row, "counts", written=False, dtype=None),
            operand(table, "counts", written=True, dtype=None),
            counts=(row.size,) * self.num_ranks,
        )
        return self._run(request, None, None)
