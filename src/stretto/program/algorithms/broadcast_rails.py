"""Broadcast over several hosts: once to each host, in parts, then within."""

from __future__ import annotations

from stretto.program.lang import Ranks, algorithm, by_host


@algorithm("broadcast/rails")
def rails(ranks: Ranks, root: int = 0, hosts: tuple[int, ...] = ()) -> None:
    """The root's host has a sender for each part; each host gets each part once."""
    groups = by_host(ranks, hosts)
    parts = min(map(len, groups))
    home = next(group for group in groups if ranks[root] in group)
    at = home.index(ranks[root])
    n = len(ranks[root].output)
    for i in range(parts):
        part = slice(i * n // parts, (i + 1) * n // parts)
        sender = home[(at + i) % len(home)]
        if sender != root:
            sender.output[part] = ranks[root].input[part]
        else:
            sender.output[part] = sender.input[part]
        for group in groups:
            owner = sender if group is home else group[(at + i) % len(group)]
            if owner != sender:
                owner.output[part] = sender.output[part]
            for q in group:
                if q == owner:
                    continue
                if q == root:
                    q.output[part] = q.input[part]
                else:
                    q.output[part] = owner.output[part]
