"""Pieces over paths: what every piece of an exchange has to do.

The paths are those of an optimal flow and, since a flow does not know what a detour
costs in time, short ones beside them. A linear program weighs them together.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import replace
from fractions import Fraction
from typing import Any, TypeAlias

import numpy as np

from stretto.synth.bounds.flows import ExchangeFlow, exchange_flow
from stretto.synth.clock import SearchClock
from stretto.synth.direct.exchange import decompose
from stretto.synth.general.rounding import RouteOwner, shared_out
from stretto.synth.general.transfers import TimedTransfers
from stretto.synth.network.symmetry import Symmetry
from stretto.synth.schedules.schedule import Demand, TimedMove
from stretto.synth.solvers import csgraph, linprog, sparse

__all__ = ["PathSource"]

_Path: TypeAlias = tuple[int, ...]
_Pair: TypeAlias = tuple[int, int]
_LATER = Fraction(0)
"""When a move starts is planned later."""


class PathSource:
    """The paths of a demand whose data nobody copies."""

    def __init__(
        self,
        demand: Demand,
        symmetry: Symmetry,
        clock: SearchClock,
        flow: ExchangeFlow | None,
    ) -> None:
        self._clock = clock
        self._name = "paths, pieces"
        self._demand = demand
        # who gathers is a scatter, seen from the end: paths are turned, not links
        self._back = demand.collective == "gather"
        network = demand.network.reversed if self._back else demand.network
        root = None if demand.collective == "all_to_all" else demand.root
        if root is not None:
            symmetry = replace(symmetry, representatives=(root,))
        flow = flow or exchange_flow(
            network, symmetry, root=root, weights=demand.weights
        )
        self._paths: dict[_Pair, dict[_Path, None]] = defaultdict(dict)
        for (s, v), ways in decompose(network, flow).items():
            for g, links in zip(symmetry.nodes, symmetry.links, strict=True):
                for path in ways:
                    image = tuple(links[e] for e in path)
                    self._paths[g[s], g[v]][image] = None
                if root is not None:
                    break
        self._network = network
        self._short(root)
        if self._back:
            self._paths = defaultdict(
                dict,
                {
                    (v, s): {p[::-1]: None for p in ways}
                    for (s, v), ways in self._paths.items()
                },
            )
            self._network = demand.network
        self._weighed: dict[int, dict[_Pair, dict[_Path, float]]] = {}

    variants, open = 1, False
    """Kinds of transfers, and whether there may be better fractions."""

    first_better = True
    """Whether better fractions come before other kinds."""

    def improve(self) -> bool:
        """Return that there are no better paths: the flow is optimal."""
        return False

    def _short(self, root: int | None) -> None:
        """Add the paths of least latency, and those over few links of high rate."""
        links = self._network.links
        most = float(max(k.rate for k in links))
        piece = self._demand.nbytes / len(self._network.members) ** 2 / 1000
        for scale in (1.0, 1 / 16):
            weights = [
                float(k.alpha) + piece * scale / float(k.rate) + 1e-9 / most
                for k in links
            ]
            ends = ([k.src for k in links], [k.dst for k in links])
            size = self._network.num_nodes
            graph = sparse().csr_matrix((weights, ends), shape=(size, size))
            sources = self._network.members if root is None else (root,)
            _, before = csgraph().dijkstra(
                graph, indices=list(sources), return_predecessors=True
            )
            index = {(k.src, k.dst): e for e, k in enumerate(links)}
            for row, s in enumerate(sources):
                for v in self._network.members:
                    if v != s:
                        path: list[int] = []
                        node = v
                        while node != s:
                            prior = int(before[row, node])
                            path.append(index[prior, node])
                            node = prior
                        self._paths[s, v][tuple(reversed(path))] = None

    def _shares(self, split: int) -> dict[_Pair, dict[_Path, float]]:
        scale = min(s for s in (2, 8, 32, 1 << 30) if split <= s)
        if scale not in self._weighed:
            self._weighed[scale] = self._weigh(min(scale, 256))
        return self._weighed[scale]

    def _weigh(self, pieces: int) -> dict[_Pair, dict[_Path, float]]:
        """Return what every path carries of its pair, the fullest link emptiest."""
        demand, network = self._demand, self._network
        members = {r: i for i, r in enumerate(network.members)}
        rates = np.array([float(k.rate) for k in network.links])
        keys = [(pair, path) for pair, ways in self._paths.items() for path in ways]
        place = {pair: i for i, pair in enumerate(self._paths)}
        size = {
            pair: float(replace(demand, split=1).share(members[self._part(pair)]))
            for pair in self._paths
        }
        rows, columns, values = [], [], []
        price = np.zeros(len(keys) + 1)
        per_us = 1000.0 / demand.nbytes
        for i, (pair, path) in enumerate(keys):
            late = 0.0
            for e in path:
                rows.append(e)
                columns.append(i)
                values.append(size[pair] / rates[e])
                late += float(network.links[e].alpha) * per_us
            hops = sum(1 for e in path if network.links[e].dst < network.num_ranks)
            slow = min(rates[e] for e in path)
            late += hops * size[pair] / pieces / slow
            price[i] = late / len(place)
        rows += range(len(rates))
        columns += [len(keys)] * len(rates)
        values += [-1.0] * len(rates)
        price[-1] = 1.0
        shape = (len(rates), len(keys) + 1)
        full = sparse().csr_matrix((values, (rows, columns)), shape=shape)
        owner = sparse().csr_matrix(
            (
                np.ones(len(keys)),
                ([place[pair] for pair, _ in keys], list(range(len(keys)))),
            ),
            shape=(len(place), len(keys) + 1),
        )
        result = linprog(
            price,
            A_ub=full,
            b_ub=np.zeros(len(rates)),
            A_eq=owner,
            b_eq=np.ones(len(place)),
            bounds=(0, None),
            method="highs",
        )
        assert result.status == 0, result.message  # every pair has a path
        found: dict[_Pair, dict[_Path, float]] = defaultdict(dict)
        for (pair, path), weight in zip(keys, result.x, strict=False):
            if weight > 1e-9:
                found[pair][path] = float(weight)
        return found

    def _part(self, pair: _Pair) -> int:
        """Return whose part a pair carries."""
        return pair[0] if self._back else pair[1]

    def choose(self) -> int:
        """Return the kind of transfers that is likely the best: there is one."""
        return 0

    def promise(self, variant: int) -> float:
        """Return that the bound is met: the flow is optimal."""
        return 1.0

    def prepare(self, split: int, variant: int) -> None:
        """Weigh the paths for such a cut, if they are not weighed yet."""
        self._shares(split)

    def transfers(self, split: int, seed: int, variant: int = 0) -> TimedTransfers:
        """Return all transfers of a cut into so many pieces a part."""
        demand = replace(self._demand, split=split)
        network = self._network
        shares = self._shares(split)
        members = {r: i for i, r in enumerate(network.members)}
        routes = [(pair, path) for pair in sorted(shares) for path in shares[pair]]
        loads = _loads([path for _, path in routes], network.links)
        owners, at = [], 0
        for pair in sorted(shares):
            ways = shares[pair]
            owners.append(
                RouteOwner(
                    routes=tuple(range(at, at + len(ways))),
                    weights=tuple(w / sum(ways.values()) for w in ways.values()),
                    pieces=split,
                    size=float(demand.share(members[self._part(pair)])),
                )
            )
            at += len(ways)
        counts = shared_out(
            owners, loads, seed=seed, check=lambda: self._clock.left <= 0
        )
        transfers = TimedTransfers(self._name)
        for pair, owner in zip(sorted(shares), owners, strict=True):
            place = members[self._part(pair)]
            pairs = demand.collective == "all_to_all"
            base = place + (members[pair[0]] * len(members) if pairs else 0)
            share = demand.share(place)
            taken = [routes[r][1] for r in owner.routes for _ in range(counts[r])]
            for j, path in enumerate(taken):
                after: tuple[int, ...] = ()
                for way in _hops(demand, path):
                    src, dst = network.links[way[0]].src, network.links[way[-1]].dst
                    move = TimedMove(_LATER, base * split + j, src, dst, way)
                    after = (transfers.add(move, share, after, j / split),)
        return transfers


def _loads(paths: list[_Path], links: Any) -> Any:
    """Return what a piece of size 1 takes of every link, by path."""
    loads = np.zeros((len(paths), len(links)))
    for i, path in enumerate(paths):
        for e in path:
            loads[i, e] += 1 / float(links[e].rate)
    return loads


def _hops(demand: Demand, path: _Path) -> Iterator[_Path]:
    """Yield the parts of a path between ranks, which store and forward."""
    part: list[int] = []
    for e in path:
        part.append(e)
        if demand.network.links[e].dst < demand.network.num_ranks:
            yield tuple(part)
            part = []
