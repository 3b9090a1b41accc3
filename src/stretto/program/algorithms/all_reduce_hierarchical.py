"""Hierarchical all-reduce: sum in the box, ring between boxes, share in the box."""

from __future__ import annotations

from stretto.errors import RanksError
from stretto.program.lang import Ranks, algorithm, reduce


@algorithm("all_reduce/hierarchical")
def hierarchical(ranks: Ranks, group: int = 0) -> None:
    """Reduce-scatter in each box, ring along every rail, gather in each box.

    Legend: g ranks a box, m boxes, i place in the box, b box, part i of the vector.
    """
    n = len(ranks)
    g = group or box_size(n)
    if n % g:
        raise RanksError(f"group={group}: {n} ranks make no boxes of {g}")
    m = n // g
    width = len(ranks[0].output) // g
    for r in ranks:
        i, box = r % g, ranks[r - r % g : r - r % g + g]
        part = slice(i * width, (i + 1) * width)
        r.output[part] = reduce(q.input[part] for q in box)
    chunk = width // m
    for step in range(m - 1):
        for r in ranks:
            at = r % g * width + (r // g - step) % m * chunk
            ranks[r + g].output[at : at + chunk] += r.output[at : at + chunk]
    for step in range(m - 1):
        for r in ranks:
            at = r % g * width + (r // g + 1 - step) % m * chunk
            ranks[r + g].output[at : at + chunk] = r.output[at : at + chunk]
    for r in ranks:
        i, box = r % g, ranks[r - r % g : r - r % g + g]
        part = slice(i * width, (i + 1) * width)
        for q in box:
            if q != r:
                q.output[part] = r.output[part]


def box_size(n: int) -> int:
    """Return the largest box of at most 8 ranks that n ranks divide into."""
    return max(g for g in range(1, 9) if n % g == 0)
