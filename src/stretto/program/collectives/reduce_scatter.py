"""Everybody gets its part of the combination of everybody's vector."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from stretto.program.collectives.base import Holds, Pattern, Shape
from stretto.program.elements import Array, Operator, reduced


class ReduceScatter(Pattern):
    """Everybody gets its part of the combination of everybody's vector."""

    name = "reduce_scatter"
    gives, takes = Holds.WHOLE, Holds.PART
    reduces = True

    def oracle(
        self, shape: Shape, inputs: Sequence[Array], op: Operator, counts: Array
    ) -> list[Array]:
        """Return every rank's output."""
        total = reduced(op, inputs)
        ends = np.cumsum(counts)[:-1]
        return [part.copy() for part in np.split(total, ends)]
