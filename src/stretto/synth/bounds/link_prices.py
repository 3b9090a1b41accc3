"""What no all_reduce goes below: prices of links, and what every sum must pay.

Take any piece of the vector, and the first rank that holds its whole sum. Until then a
tree of transfers has led to that rank from every member; after it, every other member
has still to hear something. Backwards in time it is the same. So with any prices of
links, all transfers together pay at least the cheapest such tree and, for every other
member, the cheapest way in (or out). The best prices come from a linear program; what
they prove is computed again in whole numbers, with sets that every tree must leave, so
it trusts neither the solver nor who looks for trees.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import numpy as np

from stretto.synth.bounds.cut_packing import packed_cuts
from stretto.synth.network.cheapest_trees import MOST_EXACT, spanning, steiner
from stretto.synth.network.hops import HopGraph, Hops
from stretto.synth.network.model import Network
from stretto.synth.solvers import linprog, sparse

__all__ = ["Prices", "gossip_prices"]

_CLOSE = 1.001
_MOST_TURNS = 80


@dataclass(frozen=True, slots=True, kw_only=True)
class Prices:
    """Prices of links, and what every piece of an all_reduce pays at least."""

    prices: tuple[int, ...]
    worth: int
    backward: bool = False
    """Whether a tree leads from a rank to all, and every other one sends before it."""
    trees: dict[int, list[tuple[int, list[int]]]]
    """By rank: values and sets that prove what a tree to it costs."""

    def rate(self, network: Network) -> Fraction:
        """Return the rate of all_reduce that they prove."""
        paid = zip(self.prices, network.links, strict=True)
        return sum((p * k.rate for p, k in paid), Fraction(0)) / self.worth


def gossip_prices(network: Network, known: Fraction) -> Prices | None:
    """Return prices that prove a rate of all_reduce below what is `known`, or None."""
    best: Prices | None = None
    for backward in (False, True):
        way = network.reversed if backward else network
        found = _best_prices(way, float(known))
        proved = None if found is None else _proved(way, found, backward=backward)
        if proved is not None and proved.rate(network) < known:
            best, known = proved, proved.rate(network)
    return best


def _proved(network: Network, prices: Any, *, backward: bool) -> Prices | None:
    """Return what prices prove, exactly: they become whole numbers."""
    top = max(prices)
    if not top > 0:
        return None
    exact = [Fraction(p / top).limit_denominator(10**4) for p in prices]
    scale = math.lcm(*(p.denominator for p in exact))
    if scale > 1 << 40:
        return None
    whole = np.array([float(p * scale) for p in exact])
    # a little is added, so that no way is free for the search, and taken off again
    tiny = 2.0**-10 / (len(prices) + 1) / (network.num_ranks + 1) / 4
    hops = HopGraph(network).hops(whole + tiny)
    far = np.where(np.isfinite(hops.cost), hops.cost, 1e15)
    cost = np.floor(far + 1e-9).astype(np.int64)
    np.fill_diagonal(cost, 10**15)
    into, out = cost.min(axis=0), cost.min(axis=1)
    members = np.array(network.members)
    trees: dict[int, list[tuple[int, list[int]]]] = {}

    def worth(r: int) -> int:
        others = members[members != r]
        tree = max(int(out[others].sum()), int(into[r]))
        if r in trees:
            tree = sum(value for value, _ in trees[r])
        return tree + int(into[others].sum())

    worths = {r: worth(r) for r in range(network.num_ranks)}
    while (r := min(worths, key=lambda r: (worths[r], r not in trees))) not in trees:
        trees[r] = packed_cuts(cost.T, r, network.members)
        if worth(r) < worths[r]:  # every rank by itself proves more
            trees[r] = [(int(out[v]), [int(v)]) for v in members if v != r]
        worths[r] = worth(r)
    if not worths[r]:
        return None
    return Prices(
        prices=tuple(int(p * scale) for p in exact),
        worth=worths[r],
        backward=backward,
        trees={r: sets for r, sets in trees.items() if worths[r]},
    )


def _into(cost: Any, v: int) -> Any:
    column = cost[:, v].copy()
    column[v] = np.inf
    return column.min()


def _tree(
    network: Network, cost: Any, root: int
) -> tuple[float, list[tuple[int, int]]]:
    """Return the cheapest tree from all members to a root, or the sum of ways out."""
    members = network.members
    if len(members) == network.num_ranks:
        edges = spanning(cost.T, root)
    elif len(members) <= MOST_EXACT:
        edges = steiner(cost.T, root, members)
    else:  # not known exactly: everybody must at least send
        edges = []
        for v in members:
            if v != root:
                row = cost[v].copy()
                row[v] = np.inf
                edges.append((int(row.argmin()), v))
    return sum(float(cost[v, u]) for u, v in edges), edges


def _best_prices(network: Network, known: float) -> Any:
    rates = np.array([float(k.rate) for k in network.links])
    links, members = len(rates), network.members
    reach = HopGraph(network)
    width = links + len(members) + 1
    place = {v: links + i for i, v in enumerate(members)}
    rows: list[dict[int, float]] = []
    seen: set[frozenset[tuple[int, float]]] = set()

    def add(row: dict[int, float]) -> int:
        key = frozenset(row.items())
        if key in seen:
            return 0
        seen.add(key)
        rows.append(row)
        return 1

    prices = 1 / rates / links
    center = prices
    best, proved = prices, 0.0
    for turn in range(_MOST_TURNS):
        fresh = 0
        for at in (0.5 * prices + 0.5 * center, prices) if turn else (prices,):
            at = at + 1e-7 / links / rates
            hops = reach.hops(at)
            worth = np.inf
            for r in range(network.num_ranks):
                cost, edges = _tree(network, hops.cost, r)
                row: dict[int, float] = {width - 1: 1.0}
                for u, v in edges:
                    for e in hops.way(v, u):
                        row[e] = row.get(e, 0.0) - 1.0
                for v in members:
                    if v != r:
                        row[place[v]] = -1.0
                        cost += float(_into(hops.cost, v))
                worth = min(worth, cost)
                fresh += add(row)
            for v in members:
                fresh += add(_way_in(hops, v, place[v]))
            value = worth / float(at @ rates)
            if value > proved:
                proved, best = value, at
            if fresh:
                break
        if not fresh:
            break
        result = _solved(rows, rates, width)
        if result.status != 0:
            break
        prices = result.x[:links]
        center = 0.5 * center + 0.5 * prices
        if proved * _CLOSE >= -result.fun:
            break
        if -result.fun * known < 1:  # whatever the prices, more is known already
            return None
    return best


def _way_in(hops: Hops, v: int, place: int) -> dict[int, float]:
    column = hops.cost[:, v].copy()
    column[v] = np.inf
    row = {place: 1.0}
    for e in hops.way(int(column.argmin()), v):
        row[e] = row.get(e, 0.0) - 1.0
    return row


def _solved(rows: list[dict[int, float]], rates: Any, width: int) -> Any:
    """Return what the linear program says of the rows so far: prices, then values."""
    at_rows = [i for i, row in enumerate(rows) for _ in row]
    at_columns = [c for row in rows for c in row]
    values = [x for row in rows for x in row.values()]
    upper = sparse().csr_matrix(
        (values, (at_rows, at_columns)), shape=(len(rows), width)
    )
    equal = np.zeros((1, width))
    equal[0, : len(rates)] = rates
    price = np.zeros(width)
    price[-1] = -1.0
    return linprog(
        price,
        A_ub=upper,
        b_ub=np.zeros(len(rows)),
        A_eq=equal,
        b_eq=[1.0],
        bounds=(0, None),
        method="highs",
    )
