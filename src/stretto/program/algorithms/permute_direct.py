"""Permute: every source hands its vector to its target; send and recv are one pair."""

from __future__ import annotations

from collections.abc import Iterable

from stretto.program.lang import Ranks, algorithm


@algorithm("permute/direct")
def direct(ranks: Ranks, pairs: Iterable[tuple[int, int]] = ()) -> None:
    """Every source hands its vector to its target."""
    for source, target in pairs:
        ranks[target].output[:] = ranks[source].input[:]
