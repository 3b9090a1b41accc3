"""Reduce-scatter over several hosts: sum in each host, then along the rails."""

from __future__ import annotations

from stretto.program.lang import Ranks, algorithm, by_host, reduce


@algorithm("reduce_scatter/rails")
def rails(ranks: Ranks, hosts: tuple[int, ...] = ()) -> None:
    """On each host one rank sums a part, and hands it to who shall have it."""
    groups = by_host(ranks, hosts)
    k, n = len(ranks[0].output), len(ranks)
    for group in groups:
        for place, r in enumerate(group):
            part = slice(r * k, r * k + k)
            sums = []
            for here in groups:
                owner = r if here is group else here[place % len(here)]
                kept = owner.scratch("sum", n * k)
                kept[part] = reduce(q.input[part] for q in here)
                sums.append(kept[part])
            r.output[:] = reduce(sums)
