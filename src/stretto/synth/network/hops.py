"""From rank to rank over switches, without counting the ways: shortest paths only.

A rank ends a hop, so each rank is two nodes here: one that only sends, one that only
receives. Shortest paths for some prices of links are found for all ranks at once.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from stretto.synth.network.model import Network
from stretto.synth.solvers import csgraph, sparse

__all__ = ["HopGraph", "Hops"]


@dataclass(frozen=True, slots=True)
class Hops:
    """The cheapest hop between any two ranks for some prices."""

    cost: Any
    """By source and destination; infinite where there is none."""
    way: Callable[[int, int], tuple[int, ...]]
    """Returns the links of the cheapest hop."""


class HopGraph:
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

    def _way(self, before: Any, src: int, dst: int) -> tuple[int, ...]:
        path = []
        node = self.network.num_nodes + dst
        while node != src:
            prior = int(before[src, node])
            path.append(self.link_of[prior, node])
            node = prior
        return tuple(reversed(path))

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
        return Hops(cost[:, shift : shift + n], partial(self._way, before))
