"""Binomial reduce: pairs at distance 1, 2, 4, ... add up towards the root."""

from __future__ import annotations

from stretto.program.lang import Ranks, algorithm, reduce


@algorithm("reduce/binomial")
def binomial(ranks: Ranks, root: int = 0) -> None:
    """Pairs add up towards the root; scratch holds what is summed so far."""
    n, chunks = len(ranks), len(ranks[0].input)
    sums = [ranks[root + i].input[:] for i in range(n)]
    d = 1
    while d < n:
        for i in range(0, n - d, 2 * d):
            slot = ranks[root + i].scratch("sum", chunks)
            slot[:] = reduce(sums[i], sums[i + d])
            sums[i] = slot[:]
        d *= 2
    ranks[root].output[:] = sums[0]
