"""Bruck's all-to-all: log2 steps, each part hops along the bits of its distance."""

from __future__ import annotations

from stretto.program.lang import Ranks, algorithm


@algorithm("all_to_all/bruck")
def bruck(ranks: Ranks) -> None:
    """A part for rank r + i hops a distance d for every bit d of i."""
    n = len(ranks)
    k = len(ranks[0].input) // n
    held = [[r.input[to : to + k] for to in turn(r, n, k)] for r in ranks]
    d = 1
    while d < n:
        came = [list(parts) for parts in held]
        for r in ranks:
            for i in range(n):
                if i & d:
                    slot = ranks[r + d].scratch(f"hop{d}", n * k)
                    slot[i * k : i * k + k] = held[r][i]
                    came[(r + d) % n][i] = slot[i * k : i * k + k]
        held, d = came, d * 2
    for r in ranks:
        for i in range(n):
            at = (r - i) % n * k
            r.output[at : at + k] = held[r][i]


def turn(r: int, n: int, k: int) -> list[int]:
    """Return where the parts for ranks r, r + 1, ... start."""
    return [(r + i) % n * k for i in range(n)]
