"""What latency and bytes cost together in an all_reduce: one hop, or two.

A rank v needs the contributions of some ranks R. Of every piece, either each of them
comes straight from its owner, with none of the others in one sum, so that |R| vectors
pass the ports of v that lead there; or something of R has come two hops. That could
not be sent on before the first hop was over, so v's ports have less time for it. Of a
part g of the bytes the first holds, of the rest the second:

    T >= near + g |R| S / ports,    T >= far + (1 - g) S / all ports

with the least latency of one hop from R (near), and of two (far). For the best g both
are equal, unless g = 1 is best. Backwards in time the same holds of what v sends.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from fractions import Fraction
from typing import Any, NamedTuple

import numpy as np

from stretto.synth.network.hops import Reach
from stretto.synth.network.model import Network
from stretto.synth.solvers import csgraph

__all__ = ["Line", "levels"]

_MOST_RANKS = 128


class Line(NamedTuple):
    """A time: so many microseconds, and bytes at so many GB/s."""

    alpha: Fraction
    algbw: Fraction


def levels(network: Network) -> Iterator[tuple[Line, Line | None, int]]:
    """Yield what holds of each rank: the lesser of two lines, or the first alone."""
    if network.num_ranks > _MOST_RANKS or len(network.members) < 2:
        return
    for way in (network, network.reversed):
        yield from _levels(way)


def _levels(network: Network) -> Iterator[tuple[Line, Line | None, int]]:
    unit, hop = _hops(network)
    away = csgraph().shortest_path(np.where(np.isfinite(hop), hop + _TINY, 0.0))
    away = np.floor(away + _TINY)
    np.fill_diagonal(away, np.inf)
    # from u over at least one other rank to v
    twice = np.min(away[:, :, None] + hop[None, :, :], axis=1)
    entering = _entering(network)
    for v in network.members:
        total = sum((network.links[e].rate for e in entering[v]), Fraction(0))
        others = [u for u in network.members if u != v]
        for least in sorted({min(hop[u, v], twice[u, v]) for u in others}):
            some = [u for u in others if min(hop[u, v], twice[u, v]) >= least]
            far = Fraction(int(min(twice[u, v] for u in some)), unit)
            if never := [u for u in some if not np.isfinite(hop[u, v])]:
                late = max(twice[u, v] for u in never)
                yield Line(Fraction(int(late), unit), total), None, v
                continue
            near = Fraction(int(min(hop[u, v] for u in some)), unit)
            there = [e for e, ranks in entering[v].items() if ranks & {*some}]
            ports = sum((network.links[e].rate for e in there), Fraction(0))
            one = Line(near, ports / len(some))
            part = total * len(some) / (total * len(some) + ports)
            if far > near:
                two = Line(near + part * (far - near), total / part)
                yield two, one, v


_TINY = 2.0**-20


def _hops(network: Network) -> tuple[int, Any]:
    """Return ticks in a microsecond, and the least latency of a hop, in ticks."""
    unit = math.lcm(*(k.alpha.denominator for k in network.links))
    many = network.num_nodes + 1
    alphas = np.array([float(int(k.alpha * unit) * many + 1) for k in network.links])
    hop = np.floor(Reach(network).hops(alphas).cost / many)
    np.fill_diagonal(hop, np.inf)
    return unit, hop


def _entering(network: Network) -> list[dict[int, set[int]]]:
    """Return every rank's links in, each with the ranks that one hop brings there."""
    n = network.num_ranks
    over: list[set[int]] = [set() for _ in range(network.num_nodes)]
    leaving = network.leaving()
    for u in range(n):
        queue = [u]
        for node in queue:
            for e in leaving[node]:
                s = network.links[e].dst
                if s >= n and u not in over[s]:
                    over[s].add(u)
                    queue.append(s)
    found: list[dict[int, set[int]]] = [{} for _ in range(n)]
    for e, k in enumerate(network.links):
        if k.dst < n:
            found[k.dst][e] = {k.src} if k.src < n else over[k.src]
    return found
