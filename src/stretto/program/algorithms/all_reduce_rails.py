"""All-reduce over several hosts: sum in each host, exchange along rails, share."""

from __future__ import annotations

from stretto.program.lang import Ranks, algorithm, by_host, reduce


@algorithm("all_reduce/rails")
def rails(ranks: Ranks, hosts: tuple[int, ...] = ()) -> None:
    """As many parts as the smallest host has ranks; each has an owner on each host.

    Owners sum their host, hand the sum to the owners of the part on the other hosts,
    add what these hand them, and share it. A host with one rank sends everything: on
    unequal hosts the owners are leaders.
    """
    groups = by_host(ranks, hosts)
    parts = min(map(len, groups))
    n = len(ranks[0].output)
    for i in range(parts):
        part = slice(i * n // parts, (i + 1) * n // parts)
        owners = [group[i] for group in groups]
        for group, owner in zip(groups, owners, strict=True):
            owner.scratch("sum", n)[part] = reduce(q.input[part] for q in group)
        for owner in owners:
            owner.output[part] = reduce(q.scratch("sum", n)[part] for q in owners)
        for group, owner in zip(groups, owners, strict=True):
            for q in group:
                if q != owner:
                    q.output[part] = owner.output[part]
