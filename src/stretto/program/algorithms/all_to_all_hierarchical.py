"""Hierarchical all-to-all: first to the right place in the box, then along the rail."""

from __future__ import annotations

from stretto.errors import RanksError
from stretto.program.lang import Ranks, algorithm


@algorithm("all_to_all/hierarchical")
def hierarchical(ranks: Ranks, group: int = 0) -> None:
    """Parts for rail i go to place i of the own box, then along the rail.

    Legend: g ranks a box, b box, i place in the box, k chunks a part.
    """
    n = len(ranks)
    g = group or max(x for x in range(1, 9) if n % x == 0)
    if n % g:
        raise RanksError(f"group={group}: {n} ranks make no boxes of {g}")
    k = len(ranks[0].input) // n
    for r in ranks:
        for to in (r, *r.others):
            via = ranks[r - r % g + to % g]
            slot = via.scratch("rail", n * k)
            at = (to // g * g + r % g) * k
            slot[at : at + k] = r.input[to * k : to * k + k]
    for r in ranks:
        for box in range(n // g):
            q = ranks[(r // g + box) % (n // g) * g + r % g]
            slot = r.scratch("rail", n * k)
            for i in range(g):
                at, source = (q // g * g + i) * k, (r - r % g + i) * k
                q.output[source : source + k] = slot[at : at + k]
