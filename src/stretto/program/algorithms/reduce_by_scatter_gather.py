"""Reduce as reduce-scatter and gather: all sum a chunk and hand it to the root."""

from __future__ import annotations

from stretto.program.lang import Ranks, algorithm, reduce


@algorithm("reduce/scatter_gather")
def scatter_gather(ranks: Ranks, root: int = 0) -> None:
    """Rank r sums chunk r and hands it to the root."""
    n = len(ranks)
    k = len(ranks[0].input) // n
    for r in ranks:
        part = slice(r * k, (r + 1) * k)
        slot = r.scratch("sum", n * k)
        slot[part] = reduce(q.input[part] for q in ranks)
    for r in ranks:
        part = slice(r * k, (r + 1) * k)
        ranks[root].output[part] = r.scratch("sum", n * k)[part]
