"""Everybody gets its part of the root's vector."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from stretto.program.collectives.base import Holds, Pattern, Shape
from stretto.program.elements import Array, Operator


class Scatter(Pattern):
    """Everybody gets its part of the root's vector."""

    name = "scatter"
    gives, takes = Holds.AT_ROOT, Holds.PART
    rooted = True

    def oracle(
        self, shape: Shape, inputs: Sequence[Array], op: Operator, counts: Array
    ) -> list[Array]:
        """Return every rank's output."""
        ends = np.cumsum(counts)[:-1]
        return [part.copy() for part in np.split(inputs[shape.root], ends)]
