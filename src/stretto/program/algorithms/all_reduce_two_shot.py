"""Two-shot all-reduce: rank r reduces chunk r, then hands it round."""

from __future__ import annotations

from stretto.program.lang import Ranks, algorithm, reduce


@algorithm("all_reduce/two_shot")
def two_shot(ranks: Ranks) -> None:
    """Rank r reduces chunk r, then hands it round."""
    for r in ranks:
        r.output[r] = reduce(q.input[r] for q in ranks)
    for r in ranks:
        for q in r.others:
            q.output[r] = r.output[r]
