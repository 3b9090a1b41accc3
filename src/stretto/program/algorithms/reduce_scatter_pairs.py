"""Reduce-scatter in pairs: everyone reads everyone, and adds neighbours first."""

from __future__ import annotations

from stretto.program.lang import Ranks, algorithm, power_of_two, reduce


@algorithm("reduce_scatter/pairs", requires=power_of_two)
def pairs(ranks: Ranks) -> None:
    """Everyone adds neighbours, then neighbouring sums, of what is its own."""
    n, k = len(ranks), len(ranks[0].output)
    for r in ranks:
        level, sums = [q.input[r * k : r * k + k] for q in ranks], 0
        while len(level) > 2:
            first = sums
            for i in range(0, len(level), 2):
                place = slice(sums * k, sums * k + k)
                r.scratch("sums", n * k)[place] = reduce(level[i : i + 2])
                sums += 1
            level = [
                r.scratch("sums", n * k)[at * k : at * k + k]
                for at in range(first, sums)
            ]
        r.output[:] = reduce(level)
