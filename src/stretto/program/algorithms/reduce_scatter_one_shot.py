"""One-shot reduce-scatter: everyone reads its part from everyone."""

from __future__ import annotations

from stretto.program.lang import Ranks, algorithm, reduce


@algorithm("reduce_scatter/one_shot")
def one_shot(ranks: Ranks) -> None:
    """Everyone reads its part from everyone and adds in rank order."""
    k = len(ranks[0].output)
    for r in ranks:
        r.output[:] = reduce(q.input[r * k : r * k + k] for q in ranks)
