"""One-shot all-gather: everyone hands its part to everyone."""

from __future__ import annotations

from stretto.program.lang import Ranks, algorithm


@algorithm("all_gather/one_shot")
def one_shot(ranks: Ranks) -> None:
    """Everyone hands its part to everyone."""
    k = len(ranks[0].input)
    for r in ranks:
        for q in (r, *r.others):
            q.output[r * k : r * k + k] = r.input[:]
