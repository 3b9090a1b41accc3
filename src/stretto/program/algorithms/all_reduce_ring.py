"""Ring all-reduce: chunks travel round twice, to be summed and to be shared."""

from __future__ import annotations

from stretto.program.lang import Ranks, algorithm


@algorithm("all_reduce/ring")
def ring(ranks: Ranks, order: tuple[int, ...] = ()) -> None:
    """Chunks travel once round to be summed, once round to be shared."""
    n = len(ranks)
    line = [ranks[r] for r in order or range(n)]
    for r in ranks:
        r.output[:] = r.input[:]
    for step in range(n - 1):
        for i, r in enumerate(line):
            line[(i + 1) % n].output[i - step] += r.output[i - step]
    for step in range(n - 1):
        for i, r in enumerate(line):
            line[(i + 1) % n].output[i + 1 - step] = r.output[i + 1 - step]
