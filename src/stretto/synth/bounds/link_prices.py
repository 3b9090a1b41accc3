"""What no all_reduce goes below: prices of links, and what every sum must pay.

Take any piece of the vector, and the first rank that holds its whole sum. Until then a
tree of transfers has led to that rank from every member; after it, every other member
has still to hear something. Backwards in time it is the same. So with any prices of
links, all transfers together pay at least the cheapest such tree and, for every other
member, the cheapest way in (or out). The best prices come from a linear program; what
they prove is computed again in fractions, so it does not trust the solver.
"""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import numpy as np

from stretto.synth.network.cheapest_trees import MOST_EXACT, spanning, steiner
from stretto.synth.network.hops import Hops, Reach
from stretto.synth.network.model import Network
from stretto.synth.solvers import optimize, sparse

__all__ = ["gossip_rate"]

_CLOSE = 1.001
_MOST_TURNS = 80


def gossip_rate(network: Network, known: Fraction) -> tuple[Fraction, int] | None:
    """Return a rate of all_reduce that none exceeds, and how many links it prices.

    None: it would not be below what is `known`.
    """
    best: tuple[Fraction, int] | None = None
    for way in (network, network.reversed):
        prices = _best_prices(way, float(known))
        if prices is None:
            continue
        digits = 10**4
        top = max(prices)
        exact = [Fraction(p / top).limit_denominator(digits) for p in prices]
        worth = _worth(way, exact)
        if not worth:
            continue
        volume = sum(
            (p * k.rate for p, k in zip(exact, way.links, strict=True)), Fraction(0)
        )
        rate = volume / worth
        if best is None or rate < best[0]:
            best = rate, sum(1 for p in exact if p)
    return best if best is not None and best[0] < known else None


def _worth(network: Network, prices: list[Fraction]) -> Fraction:
    """Return what every piece pays at least, exactly: prices become whole numbers."""
    scale = 1
    for p in prices:
        scale = scale * p.denominator // np.gcd(scale, p.denominator).item()
        if scale > 1 << 40:
            return Fraction(0)
    whole = np.array([float(int(p * scale)) for p in prices])
    # a little is added, so that no way is free for the search, and taken off again
    tiny = 2.0**-10 / (len(prices) + 1) / (network.num_ranks + 1) / 4
    hops = Reach(network).hops(whole + tiny)
    cost = np.floor(hops.cost + 1e-9)
    cost[~np.isfinite(hops.cost)] = 1e30
    worths = [_least(network, cost, r) for r in range(network.num_ranks)]
    return Fraction(int(min(worths)), scale)


def _least(network: Network, cost: Any, root: int) -> float:
    return _tree(network, cost, root)[0] + sum(
        float(_into(cost, v)) for v in network.members if v != root
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
    reach = Reach(network)
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
    return optimize().linprog(
        price,
        A_ub=upper,
        b_ub=np.zeros(len(rows)),
        A_eq=equal,
        b_eq=[1.0],
        bounds=(0, None),
        method="highs",
    )
