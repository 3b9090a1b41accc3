"""Flat broadcast: the root hands its vector to everyone."""

from __future__ import annotations

from stretto.program.lang import Ranks, algorithm


@algorithm("broadcast/flat")
def flat(ranks: Ranks, root: int = 0) -> None:
    """The root hands its vector to everyone."""
    source = ranks[root]
    for q in (source, *source.others):
        q.output[:] = source.input[:]
