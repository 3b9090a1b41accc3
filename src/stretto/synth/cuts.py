"""The exact rate of all_gather, reduce_scatter and broadcast, with the cut that binds.

Every rank must take in what a set S of nodes holds, so the rate x of each root obeys
x <= capacity out of S / ranks in S, and trees that reach the smallest such ratio exist.
The discrete Newton method below finds it in a few rounds of maximum flow.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from fractions import Fraction

from stretto.errors import TopologyError
from stretto.synth.maxflow import Flow
from stretto.synth.model import Network
from stretto.synth.symmetry import Symmetry, find_symmetry

__all__ = ["Cut", "broadcast_cut", "gather_cut", "scatter_cut"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Cut:
    """A set of nodes whose way out is narrow: the certificate of a rate."""

    nodes: frozenset[int]
    capacity: Fraction
    """Of the links that leave the set, GB/s."""
    roots: int
    """Members inside, whose data must all leave."""

    @property
    def rate(self) -> Fraction:
        """Return GB/s for each root."""
        return self.capacity / self.roots


def gather_cut(network: Network, symmetry: Symmetry | None = None) -> Cut:
    """Return the cut that bounds all_gather; of the reversed graph, reduce_scatter."""
    symmetry = symmetry or find_symmetry(network)
    members = network.members
    if len(members) < 2:
        raise TopologyError(f"{network.name}: {len(members)} rank; want two or more")
    nodes = frozenset(range(network.num_nodes))
    cut = min(
        (_cut(network, nodes - {v}) for v in symmetry.representatives),
        key=lambda c: c.rate,
    )
    source = network.num_nodes
    while True:
        best = cut
        scale = math.lcm(
            cut.rate.denominator, *(k.rate.denominator for k in network.links)
        )
        flow = Flow(network.num_nodes + 1)
        for k in network.links:
            flow.add(k.src, k.dst, int(k.rate * scale))
        for v in members:
            flow.add(source, v, int(cut.rate * scale))
        need = int(cut.rate * scale) * len(members)
        for v in symmetry.representatives:
            flow.reset()
            if flow.solve(source, v) < need:
                found = _cut(network, frozenset(flow.source_side() - {source}))
                best = min(best, found, key=lambda c: c.rate)
        if best.rate == cut.rate:
            return cut
        cut = best


def broadcast_cut(network: Network, root: int) -> Cut:
    """Return the cut that bounds a broadcast from `root`."""
    scale = math.lcm(*(k.rate.denominator for k in network.links))
    flow = Flow(network.num_nodes)
    for k in network.links:
        flow.add(k.src, k.dst, int(k.rate * scale))
    best: Cut | None = None
    for v in network.members:
        if v != root:
            flow.reset()
            flow.solve(root, v)
            cut = _cut(network, frozenset(flow.source_side()), roots=1)
            best = cut if best is None or cut.capacity < best.capacity else best
    if best is None:
        raise TopologyError(f"{network.name}: 1 rank; want two or more")
    return best


def _cut(network: Network, nodes: frozenset[int], roots: int | None = None) -> Cut:
    out = sum(
        (k.rate for k in network.links if k.src in nodes and k.dst not in nodes),
        Fraction(0),
    )
    inside = len(nodes.intersection(network.members)) if roots is None else roots
    if not out:
        lost = sorted(set(network.members) - nodes)
        raise TopologyError(
            f"{network.name}: nothing reaches ranks {lost}; want a way to every rank"
        )
    return Cut(nodes=nodes, capacity=out, roots=inside)


def scatter_cut(network: Network, root: int) -> Cut:
    """Return the cut that bounds a scatter from `root`; reversed, a gather.

    Its `roots` are the members outside: what each must receive passes the cut.
    """
    others = [v for v in network.members if v != root]
    nodes = frozenset({root})
    sink = network.num_nodes
    while True:
        outside = len([v for v in others if v not in nodes])
        cut = _cut(network, nodes, roots=outside)
        scale = math.lcm(
            cut.rate.denominator, *(k.rate.denominator for k in network.links)
        )
        flow = Flow(network.num_nodes + 1)
        for k in network.links:
            flow.add(k.src, k.dst, int(k.rate * scale))
        for v in others:
            flow.add(v, sink, int(cut.rate * scale))
        if flow.solve(root, sink) == int(cut.rate * scale) * len(others):
            return cut
        nodes = frozenset(flow.source_side())
