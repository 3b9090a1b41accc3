"""Lanes over switches: who sends to whom, so that few ports wait for one another.

A transfer over a switch takes a port of its source and one of its destination at the
same time. Where every port has many partners, one waits for the other for a tenth of
the time and more, whatever the order. Where each has one, the two are a wire. So ports
get partners: those with which an optimal flow shares most, all of them together, and
such that everybody is still reached. What that costs is for a linear program to say.
"""

from __future__ import annotations

import itertools
from collections.abc import Collection, Mapping
from typing import Any, TypeAlias

import numpy as np

from stretto.synth.network.hops import Hops
from stretto.synth.network.model import Network
from stretto.synth.solvers import assignment, csgraph, sparse

__all__ = ["Lane", "Lanes", "partners"]

Lane: TypeAlias = tuple[int, int]
"""A link from a rank to a switch, and one from a switch to a rank."""

Way: TypeAlias = tuple[int, ...]
_Pair: TypeAlias = tuple[int, int]
"""A port out and a port in, by number."""
_NEVER = -1e6
_TRIED = 32


class Lanes:
    """The graph of hops of a network in which ports have given partners."""

    def __init__(self, network: Network, lanes: Collection[Lane]) -> None:
        self._network = network
        n, links = network.num_ranks, network.links
        pairs = sorted(lanes)
        self._first = np.array([a for a, _ in pairs], dtype=int)
        self._last = np.array([b for _, b in pairs], dtype=int)
        self._src = np.array([links[a].src for a in self._first], dtype=int)
        self._dst = np.array([links[b].dst for b in self._last], dtype=int)
        self._enters = np.array([links[a].dst - n for a in self._first], dtype=int)
        self._leaves = np.array([links[b].src - n for b in self._last], dtype=int)
        self._wires = np.array(
            [e for e, k in enumerate(links) if max(k.src, k.dst) < n], dtype=int
        )
        self._inside = _Inside(network)

    def hops(self, prices: Any) -> Hops:
        """Return the cheapest hops; prices are above 0."""
        n, links = self._network.num_ranks, self._network.links
        away, before = self._inside.paths(prices)
        cost = np.full((n, n), np.inf)
        ways: dict[tuple[int, int], tuple[int, ...]] = {}
        lane_costs = prices[self._first] + prices[self._last]
        lane_costs += away[self._enters, self._leaves]
        best = np.full((n, n), -1)
        order = np.argsort(-lane_costs, kind="stable")  # the cheapest comes last
        best[self._src[order], self._dst[order]] = order
        cost[self._src[order], self._dst[order]] = lane_costs[order]
        for e in self._wires.tolist():
            u, v = links[e].src, links[e].dst
            if prices[e] < cost[u, v]:
                cost[u, v] = prices[e]
                ways[u, v] = (e,)

        def way(src: int, dst: int) -> tuple[int, ...]:
            if (src, dst) not in ways:
                lane = int(best[src, dst])
                inner = self._inside.path(
                    before, int(self._enters[lane]), int(self._leaves[lane])
                )
                a, b = int(self._first[lane]), int(self._last[lane])
                ways[src, dst] = (a, *inner, b)
            return ways[src, dst]

        return Hops(cost, way)


class _Inside:
    """The switches of a network and what joins them."""

    def __init__(self, network: Network) -> None:
        n = network.num_ranks
        self._size = network.num_nodes - n
        self._links = np.array(
            [e for e, k in enumerate(network.links) if min(k.src, k.dst) >= n],
            dtype=int,
        )
        ends = [network.links[e] for e in self._links.tolist()]
        self._ends = [k.src - n for k in ends], [k.dst - n for k in ends]
        self._link_of = dict(
            zip(zip(*self._ends, strict=True), self._links.tolist(), strict=True)
        )

    def paths(self, prices: Any) -> tuple[Any, Any]:
        """Return what the cheapest ways from switch to switch cost, and their ends."""
        values = np.asarray(prices, dtype=float)[self._links]
        size = self._size
        graph = sparse().csr_matrix((values, self._ends), shape=(size, size))
        away, before = csgraph().dijkstra(graph, return_predecessors=True)
        return away, before

    def path(self, before: Any, src: int, dst: int) -> list[int]:
        """Return the links from switch to switch."""
        found = []
        while dst != src:
            prior = int(before[src, dst])
            found.append(self._link_of[prior, dst])
            dst = prior
        return found[::-1]


def partners(
    network: Network, flows: Mapping[Way, float], most: int
) -> tuple[Lane, ...]:
    """Return lanes with at most so many for a port, or a few more to reach everybody.

    `flows` is what flows over every way, of an optimal flow between the members.
    """
    ports = _Ports(network)
    worth = _worth(ports, network, flows)
    left = worth.copy()
    kept: set[_Pair] = set()
    for _ in range(most):
        for i, j in zip(*assignment(-left), strict=True):
            if left[i, j] > _NEVER / 2:
                kept.add((int(i), int(j)))
                left[i, j] = _NEVER
    kept = _joined(ports, worth, kept)
    return tuple(sorted((ports.outs[i], ports.ins[j]) for i, j in kept))


class _Ports:
    """The ports of a network, and who of its members reaches whom by them."""

    def __init__(self, network: Network) -> None:
        n, links = network.num_ranks, network.links
        self.outs = [e for e, k in enumerate(links) if k.src < n <= k.dst]
        self.ins = [e for e, k in enumerate(links) if k.dst < n <= k.src]
        self.src = [links[e].src for e in self.outs]
        self.dst = [links[e].dst for e in self.ins]
        self.rate = np.minimum.outer(
            [float(links[e].rate) for e in self.outs],
            [float(links[e].rate) for e in self.ins],
        )
        self._wires = [k for k in links if max(k.src, k.dst) < n]
        self._network = network

    def apart(self, lanes: Collection[_Pair], rate: float) -> tuple[int, Any]:
        """Return into how many parts members fall, and everybody's part.

        Only wires and lanes that are at least so fast count.
        """
        n = self._network.num_ranks
        ends = [(k.src, k.dst) for k in self._wires if k.rate >= rate]
        ends += [
            (self.src[i], self.dst[j]) for i, j in lanes if self.rate[i, j] >= rate
        ]
        us, vs = zip(*ends, strict=True) if ends else ((), ())
        graph = sparse().csr_matrix((np.ones(len(ends)), (us, vs)), shape=(n, n))
        _, part = csgraph().connected_components(graph, connection="strong")
        return len({int(part[r]) for r in self._network.members}), part


def _worth(ports: _Ports, network: Network, flows: Mapping[Way, float]) -> Any:
    """Return what flows from port to port; far below 0 where nothing can."""
    n = network.num_ranks
    away, _ = _Inside(network).paths(np.ones(len(network.links)))
    enters = [network.links[e].dst - n for e in ports.outs]
    leaves = [network.links[e].src - n for e in ports.ins]
    worth = np.where(np.isfinite(away[np.ix_(enters, leaves)]), 0.0, _NEVER)
    worth[np.equal.outer(ports.src, ports.dst)] = _NEVER
    row = {e: i for i, e in enumerate(ports.outs)}
    column = {e: j for j, e in enumerate(ports.ins)}
    for way, flow in flows.items():
        if len(way) > 1:
            worth[row[way[0]], column[way[-1]]] += flow
    return worth


def _joined(ports: _Ports, worth: Any, kept: set[_Pair]) -> set[_Pair]:
    """Return lanes that join the members as well as all there are, at every rate.

    Two lanes of different parts change partners, as long as that joins parts; where
    none do, lanes are added, those of the largest flows first.
    """
    some = [
        divmod(int(at), worth.shape[1]) for at in np.flatnonzero(worth > _NEVER / 2)
    ]
    for rate in sorted({float(ports.rate[pair]) for pair in some}, reverse=True):
        fast = [pair for pair in some if ports.rate[pair] >= rate]
        least, _ = ports.apart(fast, rate)
        count, _ = ports.apart(kept, rate)
        while count > least:
            changed = _changed(ports, worth, kept, rate)
            if changed is None:
                break
            kept = changed
            count, _ = ports.apart(kept, rate)
        for pair in sorted(fast, key=lambda p: -float(worth[p])):
            if count <= least:
                break
            more, _ = ports.apart({*kept, pair}, rate)
            if more < count:
                kept, count = {*kept, pair}, more
    return kept


def _changed(
    ports: _Ports, worth: Any, kept: set[_Pair], rate: float
) -> set[_Pair] | None:
    """Return the lanes after the change of partners that loses least and joins."""
    count, part = ports.apart(kept, rate)
    within = [
        (i, j)
        for i, j in sorted(kept)
        if ports.rate[i, j] >= rate and part[ports.src[i]] == part[ports.dst[j]]
    ]
    changes = []
    for (i, j), (k, m) in itertools.combinations(within, 2):
        new = worth[i, m], worth[k, j]
        slow = min(ports.rate[i, m], ports.rate[k, j]) < rate
        if part[ports.src[i]] == part[ports.src[k]] or slow or min(new) < _NEVER / 2:
            continue
        changes.append((float(worth[i, j] + worth[k, m] - sum(new)), (i, j), (k, m)))
    for _, (i, j), (k, m) in sorted(changes)[:_TRIED]:
        trial = kept - {(i, j), (k, m)} | {(i, m), (k, j)}
        if ports.apart(trial, rate)[0] < count:
            return trial
    return None
