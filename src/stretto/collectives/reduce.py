"""The root gets the combination of everybody's vector."""

from __future__ import annotations

from collections.abc import Sequence

from stretto.collectives.base import Array, Need, Pattern, Run, Shape
from stretto.collectives.operators import Operator, reduced

__all__ = ["Reduce"]


class Reduce(Pattern):
    """The root gets the combination of everybody's vector."""

    name = "reduce"
    reduces = True
    splits_whole = True
    rooted = True

    def input_runs(self, shape: Shape, rank: int) -> tuple[Run, ...]:
        """Return the symbols of the input."""
        return (Run(0, self.num_symbols(shape), 0),)

    def output_runs(self, shape: Shape, rank: int) -> tuple[Run, ...]:
        """Return the symbols of the output."""
        return self.input_runs(shape, rank) if rank == shape.root else ()

    def promise(self, shape: Shape, rank: int) -> tuple[Need, ...]:
        """Return what the output must hold."""
        if rank != shape.root:
            return ()
        return (Need(0, self.num_symbols(shape), 0, shape.everyone),)

    def num_parts(self, shape: Shape) -> int:
        """Return how many counts a call has."""
        return 1

    def oracle(
        self, shape: Shape, inputs: Sequence[Array], op: Operator, counts: Array
    ) -> list[Array]:
        """Return every rank's output."""
        total = reduced(op, inputs)
        return [total if r == shape.root else total[:0] for r in range(shape.num_ranks)]
