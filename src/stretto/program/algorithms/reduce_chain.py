"""Pipelined chain reduce: partial sums follow one another towards the root."""

from __future__ import annotations

from stretto.program.lang import Ranks, algorithm, reduce


@algorithm("reduce/chain")
def chain(ranks: Ranks, root: int = 0) -> None:
    """Each chunk is summed on its way from the farthest rank to the root."""
    n, chunks = len(ranks), len(ranks[0].input)
    for c in range(chunks):
        total = ranks[root + n - 1].input[c]
        for i in reversed(range(n - 1)):
            r = ranks[root + i]
            target = r.output if i == 0 else r.scratch("sum", chunks)
            target[c] = reduce(r.input[c], total)
            total = target[c]
        if n == 1:
            ranks[root].output[c] = total
