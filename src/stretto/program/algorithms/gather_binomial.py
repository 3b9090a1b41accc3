"""Binomial gather: subtrees hand what they hold towards the root."""

from __future__ import annotations

from stretto.program.lang import Ranks, algorithm


@algorithm("gather/binomial")
def binomial(ranks: Ranks, root: int = 0) -> None:
    """Subtrees hand what they hold towards the root.

    Scratch slot i holds the part of the i-th rank after the root.
    """
    n, k = len(ranks), len(ranks[0].input)
    for i in range(n):
        slot = ranks[root + i].scratch("held", n * k)
        slot[i * k : i * k + k] = ranks[root + i].input[:]
    d = 1
    while d < n:
        for i in range(0, n - d, 2 * d):
            lo, hi = (i + d) * k, min(i + 2 * d, n) * k
            source = ranks[root + i + d].scratch("held", n * k)
            ranks[root + i].scratch("held", n * k)[lo:hi] = source[lo:hi]
        d *= 2
    for i in range(n):
        at = (root + i) % n * k
        held = ranks[root].scratch("held", n * k)[i * k : i * k + k]
        ranks[root].output[at : at + k] = held
