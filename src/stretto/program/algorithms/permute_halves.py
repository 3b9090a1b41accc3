"""Permute in halves: one that its owner gives, one that its reader takes."""

from __future__ import annotations

from collections.abc import Iterable

from stretto.program.lang import Ranks, algorithm


@algorithm("permute/halves", split=2)
def halves(ranks: Ranks, pairs: Iterable[tuple[int, int]] = ()) -> None:
    """Every target has half of it from phase "given", which a schedule may push."""
    for source, target in pairs:
        with ranks.phase("given"):
            ranks[target].output[0] = ranks[source].input[0]
        ranks[target].output[1] = ranks[source].input[1]
