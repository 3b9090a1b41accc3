"""The root gets the combination of everybody's vector."""

from __future__ import annotations

from collections.abc import Sequence

from stretto.program.collectives.base import Holds, Pattern, Shape
from stretto.program.elements import Array, Operator, reduced


class Reduce(Pattern):
    """The root gets the combination of everybody's vector."""

    name = "reduce"
    gives, takes = Holds.WHOLE, Holds.AT_ROOT
    reduces = True
    splits_whole = True
    rooted = True

    def oracle(
        self, shape: Shape, inputs: Sequence[Array], op: Operator, counts: Array
    ) -> list[Array]:
        """Return every rank's output."""
        total = reduced(op, inputs)
        return [total if r == shape.root else total[:0] for r in range(shape.num_ranks)]
