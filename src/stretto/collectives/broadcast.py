"""Everybody gets the root's vector."""

from __future__ import annotations

from collections.abc import Sequence

from stretto.collectives.base import Array, Need, Pattern, Run, Shape
from stretto.collectives.operators import Operator

__all__ = ["Broadcast"]


class Broadcast(Pattern):
    """Everybody gets the root's vector."""

    name = "broadcast"
    splits_whole = True
    rooted = True

    def input_runs(self, shape: Shape, rank: int) -> tuple[Run, ...]:
        """Return the symbols of the input."""
        return (Run(0, self.num_symbols(shape), 0),) if rank == shape.root else ()

    def output_runs(self, shape: Shape, rank: int) -> tuple[Run, ...]:
        """Return the symbols of the output."""
        return (Run(0, self.num_symbols(shape), 0),)

    def promise(self, shape: Shape, rank: int) -> tuple[Need, ...]:
        """Return what the output must hold."""
        return (Need(0, self.num_symbols(shape), 0, 1 << shape.root),)

    def num_parts(self, shape: Shape) -> int:
        """Return how many counts a call has."""
        return 1

    def oracle(
        self, shape: Shape, inputs: Sequence[Array], op: Operator, counts: Array
    ) -> list[Array]:
        """Return every rank's output."""
        return [inputs[shape.root].copy() for _ in inputs]
