"""Flat scatter: the root hands everyone its part."""

from __future__ import annotations

from stretto.program.lang import Ranks, algorithm


@algorithm("scatter/flat")
def flat(ranks: Ranks, root: int = 0) -> None:
    """The root hands everyone its part."""
    source = ranks[root]
    k = len(source.output)
    for q in (source, *source.others):
        q.output[:] = source.input[q * k : q * k + k]
