"""Networks of switches in levels: leaf and spine, oversubscribed, and fat trees."""

from __future__ import annotations

from stretto.topology.reader import Reader
from stretto.topology.shapes import DraftMachine, speed_of


def add_leaf_spine(reader: Reader) -> DraftMachine:
    """Build leaves of hosts, each joined to every spine.

    `oversubscription` is what the hosts of a leaf can send over what its links to the
    spines carry: those links get the rate that makes it so.
    """
    leaves = reader.integer("leaves", least=1)
    hosts = reader.integer("hosts", least=1)
    spines = reader.integer("spines", least=1)
    over = reader.number("oversubscription", 1.0)
    if not 0 < over <= _MOST_OVER:
        raise reader.wrong("oversubscription", f"a ratio above 0, at most {_MOST_OVER}")
    rate, latency = speed_of(reader)
    draft = DraftMachine(num_ranks=leaves * hosts, ranks_per_box=hosts)
    below = [draft.switch(f"leaf{i}") for i in range(leaves)]
    above = [draft.switch(f"spine{i}") for i in range(spines if leaves > 1 else 0)]
    for i, leaf in enumerate(below):
        for rank in range(i * hosts, (i + 1) * hosts):
            draft.join(rank, leaf, (rate, latency))
        for spine in above:
            draft.join(leaf, spine, (rate * hosts / spines / over, latency))
    _turn(draft, hosts)
    reader.done()
    return draft


def add_fat_tree(reader: Reader) -> DraftMachine:
    """Build the fat tree of switches with k ports: k pods, k * k * k / 4 hosts."""
    k = reader.integer("ports", least=2)
    if k % 2:
        raise reader.wrong("ports", "an even number: half of them go up")
    half, speed = k // 2, speed_of(reader)
    draft = DraftMachine(num_ranks=k * half * half, ranks_per_box=half)
    core = [[draft.switch(f"core{a}.{b}") for b in range(half)] for a in range(half)]
    rank = 0
    for pod in range(k):
        middle = [draft.switch(f"middle{pod}.{a}") for a in range(half)]
        for a, node in enumerate(middle):
            for top in core[a]:
                draft.join(node, top, speed)
        for b in range(half):
            edge = draft.switch(f"edge{pod}.{b}")
            for node in middle:
                draft.join(edge, node, speed)
            for _ in range(half):
                draft.join(rank, edge, speed)
                rank += 1
    _turn(draft, half * half)
    reader.done()
    return draft


def _turn(draft: DraftMachine, by: int) -> None:
    n = draft.num_ranks
    if n > by:
        draft.symmetries.append(tuple((r + by) % n for r in range(n)))


_MOST_OVER = 1024
