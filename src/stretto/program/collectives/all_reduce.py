"""Everybody gets the combination of everybody's vector."""

from __future__ import annotations

from collections.abc import Sequence

from stretto.program.collectives.base import Holds, Pattern, Shape
from stretto.program.elements import Array, Operator, reduced


class AllReduce(Pattern):
    """Everybody gets the combination of everybody's vector."""

    name = "all_reduce"
    gives, takes = Holds.WHOLE, Holds.WHOLE
    reduces = True
    splits_whole = True

    def oracle(
        self, shape: Shape, inputs: Sequence[Array], op: Operator, counts: Array
    ) -> list[Array]:
        """Return every rank's output."""
        total = reduced(op, inputs)
        return [total.copy() for _ in inputs]
