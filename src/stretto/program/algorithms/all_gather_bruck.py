"""Bruck's all-gather: log2 steps for any number of ranks, then a rotation."""

from __future__ import annotations

from stretto.program.lang import Ranks, algorithm


@algorithm("all_gather/bruck")
def bruck(ranks: Ranks) -> None:
    """Scratch slot i holds the part of rank r + i; steps double what is held."""
    n, k = len(ranks), len(ranks[0].input)
    for r in ranks:
        r.scratch("turned", n * k)[0:k] = r.input[:]
    d = 1
    while d < n:
        m = min(d, n - d) * k
        for r in ranks:
            source = ranks[r + d].scratch("turned", n * k)
            r.scratch("turned", n * k)[d * k : d * k + m] = source[0:m]
        d *= 2
    for r in ranks:
        for i in range(n):
            at = (r + i) % n * k
            r.output[at : at + k] = r.scratch("turned", n * k)[i * k : i * k + k]
