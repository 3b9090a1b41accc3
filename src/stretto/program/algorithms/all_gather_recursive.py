"""Recursive doubling all-gather: pairs at distance 1, 2, 4, ... swap all they have."""

from __future__ import annotations

from stretto.program.lang import Ranks, algorithm, power_of_two


@algorithm("all_gather/recursive", requires=power_of_two)
def recursive(ranks: Ranks) -> None:
    """Pairs swap all they have, which doubles."""
    n, k = len(ranks), len(ranks[0].input)
    for r in ranks:
        r.output[r * k : r * k + k] = r.input[:]
    d = 1
    while d < n:
        for r in ranks:
            at = (r ^ d) // d * d * k
            r.output[at : at + d * k] = ranks[r ^ d].output[at : at + d * k]
        d *= 2
