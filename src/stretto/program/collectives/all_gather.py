"""Everybody gets everybody's part, in rank order."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from stretto.program.collectives.base import Holds, Pattern, Shape
from stretto.program.elements import Array, Operator


class AllGather(Pattern):
    """Everybody gets everybody's part, in rank order."""

    name = "all_gather"
    gives, takes = Holds.PART, Holds.WHOLE

    def oracle(
        self, shape: Shape, inputs: Sequence[Array], op: Operator, counts: Array
    ) -> list[Array]:
        """Return every rank's output."""
        whole = np.concatenate(inputs)
        return [whole.copy() for _ in inputs]
