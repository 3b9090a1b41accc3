"""all_to_all, scatter and gather under a sketch: the best flow over the open hops.

Rules speak of hops between ranks, so here a hop is an edge; what it carries counts on
every link that it crosses.
"""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction

import numpy as np

from stretto.errors import TopologyError
from stretto.synth.bounds.flows import ExchangeFlow, conservation
from stretto.synth.direct.exchange import Paths, decompose
from stretto.synth.network.model import Network, NetworkLink, SwitchPath
from stretto.synth.network.symmetry import Symmetry
from stretto.synth.sketch.open_hops import OpenHops
from stretto.synth.solvers import linprog, sparse

__all__ = ["confined_paths"]


def confined_paths(
    ways: OpenHops, symmetry: Symmetry, weights: tuple[int, ...] = ()
) -> Paths:
    """Return the paths of an optimal flow among those that the rules leave open."""
    network = ways.network
    hops = [h for r in range(network.num_ranks) for h in ways.hops(r)]
    direct = _direct(network, hops)
    members = network.members
    units = dict(zip(members, weights or (1,) * len(members), strict=True))
    sources, count = symmetry.representatives, len(hops)
    columns = len(sources) * count + 1
    upper = [
        (0.0, None if h.dst != s and ways.open(s, h) else 0.0)
        for s in sources
        for h in hops
    ]
    top = float(max(k.rate for k in network.links))
    price = np.full(columns, 1e-6 / (top * count))
    price[-1] = -1.0
    everybody = {s: [v for v in network.members if v != s] for s in sources}
    balance, wanted = conservation(direct, everybody, columns - 1, units)
    load, limit = _loads(network, symmetry, hops)
    result = linprog(
        price,
        A_ub=load,
        b_ub=limit,
        A_eq=balance,
        b_eq=wanted,
        bounds=[*upper, (0.0, None)],
        method="highs",
    )
    if result.status != 0 or result.x[-1] <= 0:
        raise TopologyError(
            f"{network.name}: no flow over the ways that the sketch leaves open"
        )
    flow = ExchangeFlow(
        rate=Fraction(0),
        achieved=float(result.x[-1]),
        lengths=(),
        units=units,
        flows={
            s: {
                e: float(result.x[i * count + e])
                for e in range(count)
                if result.x[i * count + e] > 1e-9 * top
            }
            for i, s in enumerate(sources)
        },
        symmetry=symmetry,
    )
    return {
        pair: {
            tuple(e for h in path for e in hops[h].links): share
            for path, share in paths.items()
        }
        for pair, paths in decompose(direct, flow).items()
    }


def _direct(network: Network, hops: list[SwitchPath]) -> Network:
    """Return the network in which every hop is a link of its own."""
    links = tuple(NetworkLink(src=h.src, dst=h.dst, rate=h.rate) for h in hops)
    return replace(network, links=links, num_nodes=network.num_ranks)


def _loads(
    network: Network, symmetry: Symmetry, hops: list[SwitchPath]
) -> tuple[object, object]:
    """Return one row for each orbit of links: what all images put on one of them."""
    orbits = sorted(set(symmetry.link_orbit))
    row = {o: i for i, o in enumerate(orbits)}
    share = {o: symmetry.order / symmetry.link_orbit.count(o) for o in orbits}
    rows, columns, values = [], [], []
    for i in range(len(symmetry.representatives)):
        for j, h in enumerate(hops):
            for orbit in (symmetry.link_orbit[e] for e in h.links):
                rows.append(row[orbit])
                columns.append(i * len(hops) + j)
                values.append(share[orbit])
    shape = (len(orbits), len(symmetry.representatives) * len(hops) + 1)
    matrix = sparse().csr_matrix((values, (rows, columns)), shape=shape)
    return matrix, np.array([float(network.links[o].rate) for o in orbits])
