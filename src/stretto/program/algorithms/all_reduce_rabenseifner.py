"""Rabenseifner's all-reduce: recursive halving to sum, doubling to share."""

from __future__ import annotations

from stretto.program.lang import Ranks, algorithm, reduce


@algorithm("all_reduce/rabenseifner")
def rabenseifner(ranks: Ranks) -> None:
    """Halve what is summed at every step, then double what is shared.

    Legend: p the largest power of two, d distance, [lo, hi) chunks of p blocks.
    """
    n = len(ranks)
    p = 1 << (n.bit_length() - 1)
    for r in ranks[:p]:
        if r + p < n:
            r.output[:] = reduce(r.input[:], ranks[r + p].input[:])
        else:
            r.output[:] = r.input[:]
    d = p // 2
    while d:
        for r in ranks[:p]:
            lo, hi = blocks(r, d, p, len(r.output))
            r.scratch("swap", len(r.output))[lo:hi] = ranks[r ^ d].output[lo:hi]
        for r in ranks[:p]:
            lo, hi = blocks(r, d, p, len(r.output))
            mine, other = r.output[lo:hi], r.scratch("swap", len(r.output))[lo:hi]
            low, high = (other, mine) if r & d else (mine, other)
            r.output[lo:hi] = reduce(low, high)
        d //= 2
    d = 1
    while d < p:
        for r in ranks[:p]:
            lo, hi = blocks(r ^ d, d, p, len(r.output))
            r.output[lo:hi] = ranks[r ^ d].output[lo:hi]
        d *= 2
    for r in ranks[p:]:
        r.output[:] = ranks[r - p].output[:]


def blocks(r: int, d: int, p: int, chunks: int) -> tuple[int, int]:
    """Return the chunks that rank r keeps when pairs are d apart."""
    first = r // d * d
    return first * chunks // p, (first + d) * chunks // p
