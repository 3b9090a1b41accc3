"""Broadcast as scatter and ring all-gather: the root sends its vector only once."""

from __future__ import annotations

from stretto.program.lang import Ranks, algorithm


@algorithm("broadcast/scatter_all_gather")
def scatter_all_gather(ranks: Ranks, root: int = 0) -> None:
    """Chunk i goes to the i-th rank, then all travel once round."""
    n = len(ranks)
    k = len(ranks[0].output) // n
    ranks[root].output[:] = ranks[root].input[:]
    for i in range(1, n):
        part = slice(i * k, (i + 1) * k)
        ranks[root + i].output[part] = ranks[root].input[part]
    for step in range(n - 1):
        for i in range(n):
            at = (i - step) % n * k
            if (i + 1) % n:  # the root has everything
                source = ranks[root + i].output[at : at + k]
                ranks[root + i + 1].output[at : at + k] = source
