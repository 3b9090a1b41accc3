"""Binomial broadcast: whoever has it hands it on, twice as many at every step."""

from __future__ import annotations

from stretto.program.lang import Ranks, algorithm


@algorithm("broadcast/binomial")
def binomial(ranks: Ranks, root: int = 0) -> None:
    """Whoever has it hands it on; far ones first."""
    n = len(ranks)
    ranks[root].output[:] = ranks[root].input[:]
    d = 1 << max(0, (n - 1).bit_length() - 1)
    while d and n > 1:
        for i in range(0, n, 2 * d):
            if i + d < n:
                ranks[root + i + d].output[:] = ranks[root + i].output[:]
        d //= 2
