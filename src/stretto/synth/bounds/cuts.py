"""The exact rate of all_gather, reduce_scatter and broadcast, with the cut that binds.

Every rank must take in what a set S of nodes holds, so the rate x of each root obeys
x <= capacity out of S / ranks in S, and trees that reach the smallest such ratio exist.
The discrete Newton method below finds it in a few rounds of maximum flow.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from fractions import Fraction

from stretto.errors import TopologyError
from stretto.synth.network.maxflow import FlowGraph
from stretto.synth.network.model import Network
from stretto.synth.network.symmetry import Symmetry, find_symmetry

__all__ = [
    "NarrowCut",
    "broadcast_cut",
    "edges_around",
    "gather_cut",
    "private_switches",
    "scatter_cut",
]


@dataclass(frozen=True, slots=True, kw_only=True)
class NarrowCut:
    """A set of nodes whose way out is narrow: the certificate of a rate."""

    nodes: frozenset[int]
    capacity: Fraction
    """Of the links that leave the set, GB/s."""
    parts: int
    """What must all leave, in units of which equal parts have one each."""

    @property
    def rate(self) -> Fraction:
        """Return GB/s for each root, or each unit."""
        return self.capacity / self.parts


def gather_cut(
    network: Network,
    symmetry: Symmetry | None = None,
    weights: tuple[int, ...] = (),
) -> NarrowCut:
    """Return the cut that bounds all_gather; of the reversed graph, reduce_scatter.

    `weights` are the sizes of the members' parts where they differ; then the symmetry
    is trivial.
    """
    symmetry = symmetry or find_symmetry(network)
    members = network.members
    units = dict(zip(members, weights or (1,) * len(members), strict=True))
    if len(members) < 2:
        raise TopologyError(f"{network.name}: {len(members)} rank; want two or more")
    nodes = frozenset(range(network.num_nodes))
    cut = min(
        (_weigh(network, nodes - {v}, units) for v in symmetry.representatives),
        key=lambda c: c.rate,
    )
    source = network.num_nodes
    while True:
        best = cut
        scale = math.lcm(
            cut.rate.denominator, *(k.rate.denominator for k in network.links)
        )
        flow = FlowGraph(network.num_nodes + 1)
        for k in network.links:
            flow.add(k.src, k.dst, int(k.rate * scale))
        for v in members:
            flow.add(source, v, int(cut.rate * scale) * units[v])
        need = int(cut.rate * scale) * sum(units.values())
        for v in symmetry.representatives:
            flow.reset()
            if flow.solve(source, v) < need:
                side = frozenset(flow.source_side() - {source})
                found = _weigh(network, side, units)
                best = min(best, found, key=lambda c: c.rate)
        if best.rate == cut.rate:
            return cut
        cut = best


def _weigh(
    network: Network, nodes: frozenset[int], units: Mapping[int, int]
) -> NarrowCut:
    inside = nodes.intersection(network.members)
    return _cut(network, nodes, parts=sum(units[v] for v in inside))


def broadcast_cut(network: Network, root: int) -> NarrowCut:
    """Return the cut that bounds a broadcast from `root`."""
    scale = math.lcm(*(k.rate.denominator for k in network.links))
    flow = FlowGraph(network.num_nodes)
    for k in network.links:
        flow.add(k.src, k.dst, int(k.rate * scale))
    best: NarrowCut | None = None
    for v in network.members:
        if v != root:
            flow.reset()
            flow.solve(root, v)
            cut = _cut(network, frozenset(flow.source_side()), parts=1)
            best = cut if best is None or cut.capacity < best.capacity else best
    if best is None:
        raise TopologyError(f"{network.name}: 1 rank; want two or more")
    return best


def _cut(network: Network, nodes: frozenset[int], parts: int) -> NarrowCut:
    out = sum(
        (k.rate for k in network.links if k.src in nodes and k.dst not in nodes),
        Fraction(0),
    )
    if not out:
        lost = sorted(set(network.members) - nodes)
        raise TopologyError(
            f"{network.name}: nothing reaches ranks {lost}; want a way to every rank"
        )
    return NarrowCut(nodes=nodes, capacity=out, parts=parts)


def scatter_cut(
    network: Network, root: int, weights: tuple[int, ...] = ()
) -> NarrowCut:
    """Return the cut that bounds a scatter from `root`; reversed, a gather.

    What the members outside must receive passes the cut.
    """
    members = network.members
    units = dict(zip(members, weights or (1,) * len(members), strict=True))
    others = [v for v in members if v != root]
    nodes = frozenset({root})
    sink = network.num_nodes
    while True:
        cut = _cut(network, nodes, sum(units[v] for v in others if v not in nodes))
        scale = math.lcm(
            cut.rate.denominator, *(k.rate.denominator for k in network.links)
        )
        flow = FlowGraph(network.num_nodes + 1)
        for k in network.links:
            flow.add(k.src, k.dst, int(k.rate * scale))
        for v in others:
            flow.add(v, sink, int(cut.rate * scale) * units[v])
        need = int(cut.rate * scale) * sum(units[v] for v in others)
        if flow.solve(root, sink) == need:
            return cut
        nodes = frozenset(flow.source_side())


def edges_around(
    network: Network, groups: Collection[Collection[int]]
) -> Iterator[frozenset[int]]:
    """Yield sets of nodes with the members of a group inside, and the others outside.

    Then the other way round. Both the links of the group and the narrowest ones between
    it and the others are edges of such a set.
    """
    members, every = network.members, frozenset(range(network.num_nodes))
    for group in groups:
        some = [v for v in members if v in group]
        others = [v for v in members if v not in group]
        if some and others:
            near = frozenset(group) | private_switches(network, group)
            yield near
            yield every - near
            yield _narrowest(network, some, others)
            yield _narrowest(network, others, some)


def _narrowest(
    network: Network, sources: Collection[int], targets: Collection[int]
) -> frozenset[int]:
    scale = math.lcm(*(k.rate.denominator for k in network.links))
    source, sink = network.num_nodes, network.num_nodes + 1
    flow = FlowGraph(network.num_nodes + 2)
    for k in network.links:
        flow.add(k.src, k.dst, int(k.rate * scale))
    endless = sum(int(k.rate * scale) for k in network.links)
    for v in sources:
        flow.add(source, v, endless)
    for v in targets:
        flow.add(v, sink, endless)
    flow.solve(source, sink)
    return frozenset(flow.source_side() - {source})


def private_switches(network: Network, inside: Collection[int]) -> set[int]:
    """Return the switches whose every link stays among these ranks."""
    joined: dict[int, set[int]] = {}
    for k in network.links:
        joined.setdefault(k.src, set()).add(k.dst)
        joined.setdefault(k.dst, set()).add(k.src)
    n = network.num_ranks
    return {v for v in range(n, network.num_nodes) if joined.get(v, set()) <= {*inside}}
