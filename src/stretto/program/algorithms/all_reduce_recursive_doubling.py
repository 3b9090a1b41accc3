"""Recursive doubling: neighbours at distance 1, 2, 4, ... swap their sums."""

from __future__ import annotations

from stretto.program.lang import Ranks, algorithm, reduce


@algorithm("all_reduce/recursive_doubling")
def recursive_doubling(ranks: Ranks) -> None:
    """Pairs swap whole vectors; ranks beyond a power of two fold in and out."""
    n = len(ranks)
    p = 1 << (n.bit_length() - 1)
    for r in ranks[:p]:
        if r + p < n:
            r.output[:] = reduce(r.input[:], ranks[r + p].input[:])
        else:
            r.output[:] = r.input[:]
    distance = 1
    while distance < p:
        for r in ranks[:p]:
            r.scratch("swap", len(r.output))[:] = ranks[r ^ distance].output[:]
        for r in ranks[:p]:
            mine, other = r.output[:], r.scratch("swap", len(r.output))[:]
            low, high = (other, mine) if r & distance else (mine, other)
            r.output[:] = reduce(low, high)
        distance *= 2
    for r in ranks[p:]:
        r.output[:] = ranks[r - p].output[:]
