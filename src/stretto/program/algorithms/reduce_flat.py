"""Flat reduce: the root reads everyone."""

from __future__ import annotations

from stretto.program.lang import Ranks, algorithm, reduce


@algorithm("reduce/flat")
def flat(ranks: Ranks, root: int = 0) -> None:
    """The root reads everyone and adds in rank order."""
    ranks[root].output[:] = reduce(q.input[:] for q in ranks)
