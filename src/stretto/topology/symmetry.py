"""Whether renaming the ranks leaves a machine as it was."""

from __future__ import annotations

from collections.abc import Sequence

from stretto.topology.machine import Machine

__all__ = ["is_symmetry"]

_Ports = frozenset[tuple[int, bool, float, float]]


def is_symmetry(machine: Machine, permutation: Sequence[int]) -> bool:
    """Return whether moving every rank r to `permutation[r]` maps links to links.

    Switches may move too. Each is matched to one that is joined alike to the nodes
    already placed; then all links are compared.
    """
    n = machine.num_ranks
    if sorted(permutation) != list(range(n)):
        return False
    speeds = {
        (k.src, k.dst): (k.bandwidth_gbytes_per_s, k.latency_us) for k in machine.links
    }
    moved = dict(enumerate(permutation))
    identity = {r: r for r in range(n)}
    left = set(range(n, n + len(machine.switches)))
    while left:
        targets = {
            ports: node
            for node in sorted(left - set(identity), reverse=True)
            if (ports := _ports(machine, node, identity))
        }
        matches = {}
        for node in sorted(left):
            target = targets.pop(_ports(machine, node, moved), None)
            if target is not None:
                matches[node] = target
        if not matches:
            return False
        moved.update(matches)
        identity.update((t, t) for t in matches.values())
        left -= set(matches)
    return speeds == {(moved[a], moved[b]): s for (a, b), s in speeds.items()}


def _ports(machine: Machine, node: int, placed: dict[int, int]) -> _Ports:
    """Return how a switch is joined to the nodes that have a place."""
    ports = set()
    for link in machine.links:
        speed = (link.bandwidth_gbytes_per_s, link.latency_us)
        if link.src == node and link.dst in placed:
            ports.add((placed[link.dst], True, *speed))
        if link.dst == node and link.src in placed:
            ports.add((placed[link.src], False, *speed))
    return frozenset(ports)
