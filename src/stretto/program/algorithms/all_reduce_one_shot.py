"""One-shot all-reduce: everyone reads everyone."""

from __future__ import annotations

from stretto.program.lang import Ranks, algorithm, reduce


@algorithm("all_reduce/one_shot")
def one_shot(ranks: Ranks) -> None:
    """Everyone reads everyone and adds in rank order."""
    for r in ranks:
        r.output[:] = reduce(q.input[:] for q in ranks)
