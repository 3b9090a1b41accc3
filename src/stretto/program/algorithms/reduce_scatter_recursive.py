"""Recursive halving reduce-scatter: pairs swap the half that the other keeps."""

from __future__ import annotations

from stretto.program.lang import Ranks, algorithm, power_of_two, reduce


@algorithm("reduce_scatter/recursive", requires=power_of_two)
def recursive(ranks: Ranks) -> None:
    """Pairs swap the half that the other keeps, far ones first."""
    n, k = len(ranks), len(ranks[0].output)
    for r in ranks:
        r.scratch("sums", n * k)[:] = r.input[:]
    d = n // 2
    while d:
        for r in ranks:
            at, to = r // d * d * k, (r // d + 1) * d * k
            source = ranks[r ^ d].scratch("sums", n * k)[at:to]
            r.scratch("swap", n * k)[at:to] = source
        for r in ranks:
            at, to = r // d * d * k, (r // d + 1) * d * k
            mine = r.scratch("sums", n * k)[at:to]
            other = r.scratch("swap", n * k)[at:to]
            low, high = (other, mine) if r & d else (mine, other)
            r.scratch("sums", n * k)[at:to] = reduce(low, high)
        d //= 2
    for r in ranks:
        r.output[:] = r.scratch("sums", n * k)[r * k : r * k + k]
