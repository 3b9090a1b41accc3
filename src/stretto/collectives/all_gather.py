"""Everybody gets everybody's part, in rank order."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from stretto.collectives.base import Array, Need, Pattern, Run, Shape
from stretto.collectives.operators import Operator

__all__ = ["AllGather"]


class AllGather(Pattern):
    """Everybody gets everybody's part, in rank order."""

    name = "all_gather"

    def input_runs(self, shape: Shape, rank: int) -> tuple[Run, ...]:
        """Return the symbols of the input."""
        k = shape.split
        return (Run(0, k, rank * k),)

    def output_runs(self, shape: Shape, rank: int) -> tuple[Run, ...]:
        """Return the symbols of the output."""
        return (Run(0, self.num_symbols(shape), 0),)

    def promise(self, shape: Shape, rank: int) -> tuple[Need, ...]:
        """Return what the output must hold."""
        k = shape.split
        return tuple(
            Need(q * k, (q + 1) * k, 0, 1 << q) for q in range(shape.num_ranks)
        )

    def num_parts(self, shape: Shape) -> int:
        """Return how many counts a call has."""
        return shape.num_ranks

    def oracle(
        self, shape: Shape, inputs: Sequence[Array], op: Operator, counts: Array
    ) -> list[Array]:
        """Return every rank's output."""
        whole = np.concatenate(inputs)
        return [whole.copy() for _ in inputs]

    def in_place(self, shape: Shape, rank: int) -> int | None:
        """Return where the input lies in the output: at the rank's own part."""
        return rank * shape.split
