"""Pipelined chain broadcast: chunks follow one another from rank to rank."""

from __future__ import annotations

from stretto.program.lang import Ranks, algorithm


@algorithm("broadcast/chain")
def chain(ranks: Ranks, root: int = 0) -> None:
    """Chunks follow one another from rank to rank."""
    n, chunks = len(ranks), len(ranks[0].output)
    ranks[root].output[:] = ranks[root].input[:]
    for c in range(chunks):
        for i in range(n - 1):
            ranks[root + i + 1].output[c] = ranks[root + i].output[c]
