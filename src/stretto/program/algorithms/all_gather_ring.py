"""Ring all-gather: parts travel once round."""

from __future__ import annotations

from stretto.program.lang import Ranks, algorithm


@algorithm("all_gather/ring")
def ring(ranks: Ranks, order: tuple[int, ...] = ()) -> None:
    """Parts travel once round."""
    n, k = len(ranks), len(ranks[0].input)
    line = [ranks[r] for r in order or range(n)]
    for r in ranks:
        r.output[r * k : r * k + k] = r.input[:]
    for step in range(n - 1):
        for i, r in enumerate(line):
            at = line[(i - step) % n] * k
            line[(i + 1) % n].output[at : at + k] = r.output[at : at + k]
