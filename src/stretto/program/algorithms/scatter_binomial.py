"""Binomial scatter: the root hands halves down a tree."""

from __future__ import annotations

from stretto.program.lang import Ranks, algorithm


@algorithm("scatter/binomial")
def binomial(ranks: Ranks, root: int = 0) -> None:
    """Everyone who holds parts of others hands half of them on.

    Scratch slot i holds the part of the i-th rank after the root.
    """
    n, k = len(ranks), len(ranks[0].output)
    for i in range(n):
        at = (root + i) % n * k
        slot = ranks[root].scratch("held", n * k)
        slot[i * k : i * k + k] = ranks[root].input[at : at + k]
    d = 1 << max(0, (n - 1).bit_length() - 1)
    while d and n > 1:
        for i in range(0, n - d, 2 * d):
            lo, hi = (i + d) * k, min(i + 2 * d, n) * k
            source = ranks[root + i].scratch("held", n * k)
            ranks[root + i + d].scratch("held", n * k)[lo:hi] = source[lo:hi]
        d //= 2
    for i in range(n):
        held = ranks[root + i].scratch("held", n * k)
        ranks[root + i].output[:] = held[i * k : i * k + k]
