"""Flat gather: everyone hands its part to the root."""

from __future__ import annotations

from stretto.program.lang import Ranks, algorithm


@algorithm("gather/flat")
def flat(ranks: Ranks, root: int = 0) -> None:
    """Everyone hands its part to the root."""
    k = len(ranks[0].input)
    for r in ranks:
        ranks[root].output[r * k : r * k + k] = r.input[:]
