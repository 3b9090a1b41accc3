"""Everybody gets the root's vector."""

from __future__ import annotations

from collections.abc import Sequence

from stretto.program.collectives.base import Holds, Pattern, Shape
from stretto.program.elements import Array, Operator


class Broadcast(Pattern):
    """Everybody gets the root's vector."""

    name = "broadcast"
    gives, takes = Holds.AT_ROOT, Holds.WHOLE
    splits_whole = True
    rooted = True

    def oracle(
        self, shape: Shape, inputs: Sequence[Array], op: Operator, counts: Array
    ) -> list[Array]:
        """Return every rank's output."""
        return [inputs[shape.root].copy() for _ in inputs]
