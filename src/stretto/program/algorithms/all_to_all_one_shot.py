"""One-shot all-to-all: everyone hands everyone its part."""

from __future__ import annotations

from stretto.program.lang import Ranks, algorithm


@algorithm("all_to_all/one_shot")
def one_shot(ranks: Ranks) -> None:
    """Everyone hands everyone its part."""
    k = len(ranks[0].input) // len(ranks)
    for r in ranks:
        for q in (r, *r.others):
            q.output[r * k : r * k + k] = r.input[q * k : q * k + k]
