"""Nobody leaves before everybody has come. No data moves."""

from __future__ import annotations

from collections.abc import Sequence

from stretto.collectives.base import Array, Need, Pattern, Run, Shape
from stretto.collectives.operators import Operator

__all__ = ["Barrier"]


class Barrier(Pattern):
    """No input, no output. Every plan is closed, so the empty one is a barrier."""

    name = "barrier"

    def input_runs(self, shape: Shape, rank: int) -> tuple[Run, ...]:
        """Return nothing."""
        return ()

    def output_runs(self, shape: Shape, rank: int) -> tuple[Run, ...]:
        """Return nothing."""
        return ()

    def promise(self, shape: Shape, rank: int) -> tuple[Need, ...]:
        """Return nothing: that the plan is closed is proved for every plan."""
        return ()

    def num_parts(self, shape: Shape) -> int:
        """Return that there are no counts."""
        return 0

    def oracle(
        self, shape: Shape, inputs: Sequence[Array], op: Operator, counts: Array
    ) -> list[Array]:
        """Return empty outputs."""
        return [part[:0] for part in inputs]
