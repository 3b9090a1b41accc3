"""Few ways over switches out of very many: the shortest ones, and distances.

On a dragonfly or a fat tree two ranks are joined by more ways than can be counted. So
walks are known only by their length: which nodes a walk of so many links reaches. A
way is then read off from its end, shortest first, until there are enough.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from fractions import Fraction
from typing import Any

import numpy as np

from stretto.synth.solvers import csgraph, sparse

__all__ = ["Distances", "useful"]

_MOST, _LONGER = 4, 3
"""Ways for a pair, and by how many links one may be longer than the shortest."""
_EFFORT = 400
"""Links looked at for a pair: ways that meet themselves are not ways."""


def useful(  # of a `Network`, whose module asks here for its hops
    network: Any, src: int, leaving: list[list[int]]
) -> Iterator[tuple[int, ...]]:
    """Yield ways from a rank to each other one that only switches join."""
    links, n = network.links, network.num_ranks
    layers: list[dict[int, list[int]]] = [{src: []}]
    """By the length of a walk: the nodes that it reaches, and over which links."""
    last: dict[int, int] = {}
    """How long a walk to a rank may be."""
    seen = {src}
    while layers[-1]:
        length = len(layers)
        found: dict[int, list[int]] = {}
        for u in layers[-1]:
            if u < n and u != src:
                continue
            for e in leaving[u]:
                v = links[e].dst
                if v != src and length <= last.get(v, length):
                    found.setdefault(v, []).append(e)
        for v in found:
            if v < n:
                last.setdefault(v, length + _LONGER)
        fresh = found.keys() - seen
        seen |= fresh
        if not fresh and (not last or length >= max(last.values())):
            break
        layers.append(found)
    for dst in sorted(last):
        yield from _read(network, src, dst, layers)


def _read(
    network: Any, src: int, dst: int, layers: list[dict[int, list[int]]]
) -> Iterator[tuple[int, ...]]:
    """Yield the shortest ways to a rank, read from their ends."""
    links, n = network.links, network.num_ranks
    count, effort = 0, 0
    for length in range(1, len(layers)):
        stack: list[tuple[int, tuple[int, ...]]] = [(dst, ())]
        while stack:
            node, path = stack.pop()
            left = length - len(path)
            if not left:
                yield path
                count += 1
                if count >= _MOST:
                    return
                continue
            passed = {links[e].dst for e in path} | {src}
            for e in reversed(layers[left].get(node, ())):
                effort += 1
                u = links[e].src
                begins = u == src and left == 1
                if begins or (u >= n and left > 1 and u not in passed):
                    stack.append((u, (e, *path)))
            if effort > _EFFORT and count:
                return


class Distances:
    """Least latencies, and fewest transfers, between nodes; found when asked for."""

    def __init__(self, network: Any) -> None:
        self._network = network
        self._unit = math.lcm(*(k.alpha.denominator for k in network.links))
        self._alphas = [int(k.alpha * self._unit) for k in network.links]
        self._many = network.num_nodes + 1
        self._known: dict[tuple[str, int], Any] = {}
        self._graphs: dict[str, Any] = {}

    def _from(self, what: str, src: int) -> Any:
        """Return whole distances from a node; unreached ones are infinite.

        Every link counts a little more than what it weighs, so that none is free; the
        little is dropped again.
        """
        if (what, src) not in self._known:
            if what not in self._graphs:
                net = self._network
                weigh = (
                    self._alphas
                    if what == "alpha"
                    else [int(k.dst < net.num_ranks) for k in net.links]
                )
                values = [float(w * self._many + 1) for w in weigh]
                ends = ([k.src for k in net.links], [k.dst for k in net.links])
                self._graphs[what] = sparse().csr_matrix(
                    (values, ends), shape=(net.num_nodes, net.num_nodes)
                )
            far = csgraph().dijkstra(self._graphs[what], indices=src)
            there = np.isfinite(far)
            far[there] //= self._many
            self._known[what, src] = far
        return self._known[what, src]

    def reaches(self, src: int, dst: int) -> bool:
        """Return whether there is a way."""
        return bool(np.isfinite(self._from("steps", src)[dst]))

    def farthest(self, roots: Any, members: Any) -> tuple[Fraction, int, int]:
        """Return the largest latency from a root to another member, and the two."""
        every = np.array(members)
        far = max(
            (float(row.max()), r, int(targets[len(row) - 1 - int(row[::-1].argmax())]))
            for r in roots
            for targets in (every[every != r],)
            for row in (self._from("alpha", r)[targets],)
        )
        return Fraction(int(far[0]), self._unit), far[1], far[2]

    def most_steps(self, roots: Any, members: Any) -> int:
        """Return the most transfers, one after another, that a way needs."""
        targets = np.array(members)
        return int(max(self._from("steps", r)[targets].max() for r in roots))
