"""Everybody gets the part that everybody has for it."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from stretto.program.collectives.base import Need, Pattern, Shape, SymbolRun
from stretto.program.elements import Array, Operator


class AllToAll(Pattern):
    """Everybody gets the part that everybody has for it."""

    name = "all_to_all"

    def input_runs(self, shape: Shape, rank: int) -> tuple[SymbolRun, ...]:
        """Return the symbols of the input."""
        width = shape.num_ranks * shape.split
        return (SymbolRun(0, width, rank * width),)

    def output_runs(self, shape: Shape, rank: int) -> tuple[SymbolRun, ...]:
        """Return the symbols of the output."""
        n, k = shape.num_ranks, shape.split
        return tuple(
            SymbolRun(q * k, (q + 1) * k, (q * n + rank) * k) for q in range(n)
        )

    def promise(self, shape: Shape, rank: int) -> tuple[Need, ...]:
        """Return what the output must hold."""
        k = shape.split
        return tuple(
            Need(q * k, (q + 1) * k, rank * k, 1 << q) for q in range(shape.num_ranks)
        )

    def num_parts(self, shape: Shape) -> int:
        """Return how many counts a call has."""
        return shape.num_ranks**2

    def oracle(
        self, shape: Shape, inputs: Sequence[Array], op: Operator, counts: Array
    ) -> list[Array]:
        """Return every rank's output."""
        n = shape.num_ranks
        matrix = np.asarray(counts).reshape(n, n)
        parts = [np.split(inputs[q], np.cumsum(matrix[q])[:-1]) for q in range(n)]
        return [np.concatenate([parts[q][r] for q in range(n)]) for r in range(n)]
