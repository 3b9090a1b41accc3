"""Ring reduce-scatter: partial sums travel round to their owners."""

from __future__ import annotations

from stretto.program.lang import Ranks, algorithm


@algorithm("reduce_scatter/ring")
def ring(ranks: Ranks) -> None:
    """The sum for rank r starts at rank r + 1 and grows on its way round."""
    n, k = len(ranks), len(ranks[0].output)
    for r in ranks:
        r.scratch("sums", n * k)[:] = r.input[:]
    for step in range(n - 1):
        for r in ranks:
            at = (r - 1 - step) % n * k
            source = r.scratch("sums", n * k)[at : at + k]
            ranks[r + 1].scratch("sums", n * k)[at : at + k] += source
    for r in ranks:
        r.output[:] = r.scratch("sums", n * k)[r * k : r * k + k]
