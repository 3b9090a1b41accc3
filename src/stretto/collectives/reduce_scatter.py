"""Everybody gets its part of the combination of everybody's vector."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from stretto.collectives.base import Array, Need, Pattern, Run, Shape
from stretto.collectives.operators import Operator, reduced

__all__ = ["ReduceScatter"]


class ReduceScatter(Pattern):
    """Everybody gets its part of the combination of everybody's vector."""

    name = "reduce_scatter"
    reduces = True

    def input_runs(self, shape: Shape, rank: int) -> tuple[Run, ...]:
        """Return the symbols of the input."""
        return (Run(0, self.num_symbols(shape), 0),)

    def output_runs(self, shape: Shape, rank: int) -> tuple[Run, ...]:
        """Return the symbols of the output."""
        k = shape.split
        return (Run(0, k, rank * k),)

    def promise(self, shape: Shape, rank: int) -> tuple[Need, ...]:
        """Return what the output must hold."""
        k = shape.split
        return (Need(0, k, rank * k, shape.everyone),)

    def num_parts(self, shape: Shape) -> int:
        """Return how many counts a call has."""
        return shape.num_ranks

    def oracle(
        self, shape: Shape, inputs: Sequence[Array], op: Operator, counts: Array
    ) -> list[Array]:
        """Return every rank's output."""
        total = reduced(op, inputs)
        ends = np.cumsum(counts)[:-1]
        return [part.copy() for part in np.split(total, ends)]

    def in_place(self, shape: Shape, rank: int) -> int | None:
        """Return None: the output is the rank's own part of the input."""
        return None
