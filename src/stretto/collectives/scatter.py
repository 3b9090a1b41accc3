"""Everybody gets its part of the root's vector."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from stretto.collectives.base import Array, Need, Pattern, Run, Shape
from stretto.collectives.operators import Operator

__all__ = ["Scatter"]


class Scatter(Pattern):
    """Everybody gets its part of the root's vector."""

    name = "scatter"
    rooted = True

    def input_runs(self, shape: Shape, rank: int) -> tuple[Run, ...]:
        """Return the symbols of the input."""
        return (Run(0, self.num_symbols(shape), 0),) if rank == shape.root else ()

    def output_runs(self, shape: Shape, rank: int) -> tuple[Run, ...]:
        """Return the symbols of the output."""
        k = shape.split
        return (Run(0, k, rank * k),)

    def promise(self, shape: Shape, rank: int) -> tuple[Need, ...]:
        """Return what the output must hold."""
        k = shape.split
        return (Need(0, k, rank * k, 1 << shape.root),)

    def num_parts(self, shape: Shape) -> int:
        """Return how many counts a call has."""
        return shape.num_ranks

    def oracle(
        self, shape: Shape, inputs: Sequence[Array], op: Operator, counts: Array
    ) -> list[Array]:
        """Return every rank's output."""
        ends = np.cumsum(counts)[:-1]
        return [part.copy() for part in np.split(inputs[shape.root], ends)]

    def in_place(self, shape: Shape, rank: int) -> int | None:
        """Return None: the output is the rank's own part of the input."""
        return None
