"""Bruck's reduce-scatter: the all-gather run backwards, for any number of ranks."""

from __future__ import annotations

from stretto.program.lang import Ranks, algorithm


@algorithm("reduce_scatter/bruck")
def bruck(ranks: Ranks) -> None:
    """Scratch slot i holds the sum for rank r + i; steps halve what is held."""
    n, k = len(ranks), len(ranks[0].output)
    for r in ranks:
        for i in range(n):
            at = (r + i) % n * k
            r.scratch("turned", n * k)[i * k : i * k + k] = r.input[at : at + k]
    d = 1 << max(0, (n - 1).bit_length() - 1)
    while d and n > 1:
        m = min(d, n - d) * k
        for r in ranks:
            source = ranks[r - d].scratch("turned", n * k)
            r.scratch("came", n * k)[0:m] = source[d * k : d * k + m]
        for r in ranks:
            r.scratch("turned", n * k)[0:m] += r.scratch("came", n * k)[0:m]
        d //= 2
    for r in ranks:
        r.output[:] = r.scratch("turned", n * k)[0:k]
