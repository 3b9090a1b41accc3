"""All-reduce of little over several hosts: everyone sums its host, then its rail."""

from __future__ import annotations

from stretto.program.lang import Ranks, algorithm, by_host, reduce


@algorithm("all_reduce/rails_one_shot")
def rails_one_shot(ranks: Ranks, hosts: tuple[int, ...] = ()) -> None:
    """Everyone sums its host, and adds the sums of one rank of each other host.

    Two steps, of which one goes between hosts; hosts are added in their order.
    """
    groups = by_host(ranks, hosts)
    n = len(ranks[0].output)
    for group in groups:
        for r in group:
            r.scratch("sum", n)[:] = reduce(q.input[:] for q in group)
    for group in groups:
        for place, r in enumerate(group):
            rail = [r if h is group else h[place % len(h)] for h in groups]
            r.output[:] = reduce(q.scratch("sum", n)[:] for q in rail)
