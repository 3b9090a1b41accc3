"""From rank to rank over switches, without counting the ways: shortest paths only.

A rank ends a hop, so each rank is two nodes here: one that only sends, one that only
receives. Shortest paths for some prices of links are found for all ranks at once.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from stretto.synth.extras import csgraph, sparse
from stretto.synth.model import Network

__all__ = ["Hops", "Reach"]


@dataclass(frozen=True, slots=True)
class Hops:
    """The cheapest hop between any two ranks for some prices."""

    cost: Any
    """By source and destination; infinite where there is none."""
    before: Any
    reach: Reach

    def way(self, src: int, dst: int) -> tuple[int, ...]:
        """Return the links of the cheapest hop."""
        shift = self.reach.network.num_nodes
        path = []
        node = shift + dst
        while node != src:
            prior = int(self.before[src, node])
            path.append(self.reach.link_of[prior, node])
            node = prior
        return tuple(reversed(path))


class Reach:
    """The graph of hops of a network."""

    def __init__(self, network: Network) -> None:
        self.network = network
        n, shift = network.num_ranks, network.num_nodes
        self._src = [k.src for k in network.links]
        self._dst = [shift + k.dst if k.dst < n else k.dst for k in network.links]
        self.link_of = {
            (u, v): e for e, (u, v) in enumerate(zip(self._src, self._dst, strict=True))
        }
        self._size = shift + n

    def hops(self, prices: Any) -> Hops:
        """Return the cheapest hops; prices are above 0."""
        n, shift = self.network.num_ranks, self.network.num_nodes
        graph = sparse().csr_matrix(
            (np.asarray(prices, dtype=float), (self._src, self._dst)),
            shape=(self._size, self._size),
        )
        cost, before = csgraph().dijkstra(
            graph, indices=np.arange(n), return_predecessors=True
        )
        return Hops(cost[:, shift : shift + n], before, self)
