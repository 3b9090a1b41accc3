"""The exact rate of all_to_all: concurrent flow, solved once per orbit of ranks.

Nothing may be copied here, so the bound is a linear program. Its dual is a length for
every link: however data are routed, rate x sum of distances <= sum of rate x length.
That inequality is checked in exact fractions, so the bound does not trust the solver.
"""

from __future__ import annotations

import heapq
from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Any

import numpy as np

from stretto.errors import TopologyError
from stretto.synth.network.model import Network
from stretto.synth.network.symmetry import Symmetry, find_symmetry, trivial
from stretto.synth.solvers import linprog, sparse

__all__ = ["ExchangeFlow", "conservation", "exchange_flow"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ExchangeFlow:
    """An optimal routing of all_to_all and the proof that none is faster."""

    rate: Fraction
    """Proven upper bound of GB/s per ordered pair; 0: none is proved."""
    achieved: float
    """What `flows` reach, GB/s per ordered pair, to the solver's precision."""
    lengths: tuple[Fraction, ...]
    """The certificate: a length for every link."""
    units: Mapping[int, int]
    """How many times the rate each member is sent: its part's relative size."""
    flows: dict[int, dict[int, float]]
    """For every representative source, the flow over each link, GB/s."""
    symmetry: Symmetry


def exchange_flow(
    network: Network,
    symmetry: Symmetry | None = None,
    *,
    root: int | None = None,
    weights: tuple[int, ...] = (),
    wanted: Mapping[int, Collection[int]] | None = None,
    concise: float = 1e-6,
) -> ExchangeFlow:
    """Return the optimum for all_to_all among the members; with a root, of scatter.

    `wanted` says whom each representative sends to, where that is not everybody.
    `concise` prices flow on links, for short ways; it is too small to cost rate.
    """
    if root is not None:
        symmetry = replace(trivial(network), representatives=(root,))
    symmetry = symmetry or find_symmetry(network)
    members = network.members
    units = dict(zip(members, weights or (1,) * len(members), strict=True))
    sources = symmetry.representatives
    num_links = len(network.links)
    columns = len(sources) * num_links + 1
    rate = columns - 1
    top = float(max(k.rate for k in network.links))
    upper = [(0.0, 0.0 if k.dst == s else None) for s in sources for k in network.links]
    price = np.full(columns, concise / (top * num_links))
    price[rate] = -1.0
    wanted = wanted or {s: [v for v in members if v != s] for s in sources}
    balance, none = conservation(network, wanted, rate, units)
    load, limit = _loads(network, symmetry, columns)
    result = linprog(
        price,
        A_ub=load,
        b_ub=limit,
        A_eq=balance,
        b_eq=none,
        bounds=[*upper, (0.0, None)],
        method="highs",
    )
    if result.status != 0:
        raise TopologyError(f"{network.name}: all_to_all flow: {result.message}")
    orbits = sorted(set(symmetry.link_orbit))
    dual = dict(zip(orbits, -result.ineqlin.marginals, strict=True))
    proof, lengths = min(
        _rounded(network, symmetry, dual, top, digits, units, wanted)
        for digits in (2, 4, 7)
    )
    return ExchangeFlow(
        rate=proof,
        achieved=float(result.x[rate]),
        lengths=lengths,
        units=units,
        flows={
            s: {e: float(x) for e, x in enumerate(row) if x > 1e-9 * top}
            for s, row in zip(
                sources, result.x[:rate].reshape(-1, num_links), strict=True
            )
        },
        symmetry=symmetry,
    )


def conservation(
    network: Network,
    wanted: Mapping[int, Collection[int]],
    rate: int,
    units: Mapping[int, int],
) -> Any:
    """Return the rows that say: who is sent to takes a share of `rate`, others none."""
    num_links, num_nodes = len(network.links), network.num_nodes
    rows, columns, values = [], [], []
    for i, (s, others) in enumerate(wanted.items()):
        for e, link in enumerate(network.links):
            rows += [i * num_nodes + link.dst, i * num_nodes + link.src]
            columns += [i * num_links + e] * 2
            values += [1.0, -1.0]
        for v in others:
            rows.append(i * num_nodes + v)
            columns.append(rate)
            values.append(-float(units[v]))
        rows.append(i * num_nodes + s)
        columns.append(rate)
        values.append(float(sum(units[v] for v in others)))
    shape = (len(wanted) * num_nodes, rate + 1)
    matrix = sparse().csr_matrix((values, (rows, columns)), shape=shape)
    return matrix, np.zeros(shape[0])


def _loads(network: Network, symmetry: Symmetry, num_columns: int) -> Any:
    """Return one row for each orbit of links: what all images put on one of them."""
    orbits = sorted(set(symmetry.link_orbit))
    row = {o: i for i, o in enumerate(orbits)}
    size = {o: symmetry.link_orbit.count(o) for o in orbits}
    rows, columns, values = [], [], []
    num_links = len(network.links)
    for i in range(len(symmetry.representatives)):
        for e in range(num_links):
            orbit = symmetry.link_orbit[e]
            rows.append(row[orbit])
            columns.append(i * num_links + e)
            values.append(symmetry.order / size[orbit])
    shape = (len(orbits), num_columns)
    matrix = sparse().csr_matrix((values, (rows, columns)), shape=shape)
    return matrix, np.array([float(network.links[o].rate) for o in orbits])


def _rounded(
    network: Network,
    symmetry: Symmetry,
    dual: dict[int, float],
    top: float,
    digits: int,
    units: Mapping[int, int],
    wanted: Mapping[int, Collection[int]],
) -> tuple[Fraction, tuple[Fraction, ...]]:
    """Return what the dual proves once its lengths are made simple fractions."""
    simple = {
        o: Fraction(max(0.0, float(value)) * top).limit_denominator(10**digits)
        / symmetry.link_orbit.count(o)
        for o, value in dual.items()
    }
    lengths = tuple(simple[o] for o in symmetry.link_orbit)
    return _certify(network, symmetry, lengths, units, wanted), lengths


def _certify(
    network: Network,
    symmetry: Symmetry,
    lengths: tuple[Fraction, ...],
    units: Mapping[int, int],
    wanted: Mapping[int, Collection[int]],
) -> Fraction:
    """Return the bound that these lengths prove."""
    total = Fraction(0)
    for s, others in wanted.items():
        away = _distances(network, s, lengths)
        if missing := [v for v in others if v not in away]:
            raise TopologyError(f"{network.name}: no way from {s} to {missing}")
        total += sum(away[v] * units[v] for v in others)
    if not total:  # rounded away: proves nothing
        return max(k.rate for k in network.links) * len(network.links)
    volume = sum(
        (k.rate * w for k, w in zip(network.links, lengths, strict=True)), Fraction(0)
    )
    return volume / (total * symmetry.order)


def _distances(
    network: Network, source: int, lengths: tuple[Fraction, ...]
) -> dict[int, Fraction]:
    leaving = network.leaving()
    done: dict[int, Fraction] = {}
    heap = [(Fraction(0), source)]
    while heap:
        far, node = heapq.heappop(heap)
        if node in done:
            continue
        done[node] = far
        for e in leaving[node]:
            if network.links[e].dst not in done:
                heapq.heappush(heap, (far + lengths[e], network.links[e].dst))
    return done
