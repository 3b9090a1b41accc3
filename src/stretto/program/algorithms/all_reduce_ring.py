"""Ring all-reduce: chunks travel round twice, to be summed and to be shared."""

from __future__ import annotations

from stretto.program.lang import Ranks, algorithm


@algorithm("all_reduce/ring")
def ring(ranks: Ranks) -> None:
    """Chunks travel once round to be summed, once round to be shared."""
    n = len(ranks)
    for r in ranks:
        r.output[:] = r.input[:]
    for step in range(n - 1):
        for r in ranks:
            ranks[r + 1].output[r - step] += r.output[r - step]
    for step in range(n - 1):
        for r in ranks:
            ranks[r + 1].output[r + 1 - step] = r.output[r + 1 - step]
