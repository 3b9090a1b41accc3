"""The root gets everybody's part, in rank order."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from stretto.program.collectives.base import Holds, Pattern, Shape
from stretto.program.elements import Array, Operator


class Gather(Pattern):
    """The root gets everybody's part, in rank order."""

    name = "gather"
    gives, takes = Holds.PART, Holds.AT_ROOT
    rooted = True

    def oracle(
        self, shape: Shape, inputs: Sequence[Array], op: Operator, counts: Array
    ) -> list[Array]:
        """Return every rank's output."""
        whole = np.concatenate(inputs)
        return [whole if r == shape.root else whole[:0] for r in range(shape.num_ranks)]
