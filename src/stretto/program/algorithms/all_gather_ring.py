"""Ring all-gather: parts travel once round."""

from __future__ import annotations

from stretto.program.lang import Ranks, algorithm


@algorithm("all_gather/ring")
def ring(ranks: Ranks) -> None:
    """Parts travel once round."""
    n, k = len(ranks), len(ranks[0].input)
    for r in ranks:
        r.output[r * k : r * k + k] = r.input[:]
    for step in range(n - 1):
        for r in ranks:
            at = (r - step) % n * k
            ranks[r + 1].output[at : at + k] = r.output[at : at + k]
