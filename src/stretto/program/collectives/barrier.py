"""Nobody leaves before everybody has come. No data moves."""

from __future__ import annotations

from collections.abc import Sequence

from stretto.program.collectives.base import Pattern, Shape
from stretto.program.elements import Array, Operator


class Barrier(Pattern):
    """No input, no output. Every plan is closed, so the empty one is a barrier."""

    name = "barrier"

    def num_parts(self, shape: Shape) -> int:
        """Return that there are no counts."""
        return 0

    def oracle(
        self, shape: Shape, inputs: Sequence[Array], op: Operator, counts: Array
    ) -> list[Array]:
        """Return empty outputs."""
        return [part[:0] for part in inputs]
