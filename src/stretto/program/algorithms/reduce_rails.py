"""Reduce over several hosts: sum in each host, in parts, then at the root."""

from __future__ import annotations

from stretto.program.lang import Ranks, algorithm, by_host, reduce


@algorithm("reduce/rails")
def rails(ranks: Ranks, root: int = 0, hosts: tuple[int, ...] = ()) -> None:
    """Each host sums its part at one rank; the root adds the hosts in their order."""
    groups = by_host(ranks, hosts)
    n = len(ranks[root].output)
    owners = []
    for group in groups:
        owner = ranks[root] if ranks[root] in group else group[root % len(group)]
        owner.scratch("sum", n)[:] = reduce(q.input[:] for q in group)
        owners.append(owner)
    ranks[root].output[:] = reduce(q.scratch("sum", n)[:] for q in owners)
