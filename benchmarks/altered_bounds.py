"""Bounds of collectives by linear programs over links: no code of `stretto.synth`.

They are in floating point and loosened by a millionth.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from altered_machines import Case
from scipy.optimize import linprog
from scipy.sparse import csr_matrix

__all__ = ["bound_us"]


def bound_us(case: Case, collective: str, nbytes: int) -> float:
    """Return what no schedule goes below: rates, and the latency of the longest way."""
    machine = case["machine"]
    members = case["group"] or tuple(range(machine.num_ranks))
    links = _links(case)
    match collective:
        case "all_gather":
            rate = _gathers(links, members)
        case "reduce_scatter":
            rate = _gathers([(b, a, r, t) for a, b, r, t in links], members)
        case "all_to_all":
            rate = _exchanges(links, members)
        case _:
            rate = _reduces(links, members, machine.num_ranks)
    late = max(_latency(links, members[0], v) for v in members)
    return max(nbytes / rate / 1e3, late) * (1 - 1e-6)


def _links(case: Case) -> list[tuple[int, int, float, float]]:
    machine, group = case["machine"], case["group"]
    gone = set()
    if group and not case["relays"]:
        gone = set(range(machine.num_ranks)) - set(group)
    return [
        (k.src, k.dst, k.bandwidth_gbytes_per_s, k.latency_us)
        for k in machine.links
        if k.bandwidth_gbytes_per_s > 0 and not {k.src, k.dst} & gone
    ]


def _latency(links: list[Any], src: int, dst: int) -> float:
    far = {src: 0.0}
    for _ in range(len(links)):
        again = dict(far)
        for a, b, _, t in links:
            if a in far:
                again[b] = min(again.get(b, np.inf), far[a] + t)
        if again == far:
            break
        far = again
    return far[dst]


def _gathers(links: list[Any], members: tuple[int, ...]) -> float:
    """Return the rate at which the worst member can take in all others' data."""
    nodes = 1 + max(max(a, b) for a, b, _, _ in links)
    worst = np.inf
    for v in members:
        rows, columns, values = [], [], []
        for e, (a, b, _, _) in enumerate(links):
            rows += [a, b]
            columns += [e, e]
            values += [-1.0, 1.0]
        x = len(links)
        for r in members:
            if r != v:
                rows.append(r)
                columns.append(x)
                values.append(1.0)
        rows.append(v)
        columns.append(x)
        values.append(-(len(members) - 1.0))
        balance = csr_matrix((values, (rows, columns)), shape=(nodes, x + 1))
        price = np.zeros(x + 1)
        price[x] = -1
        top = [(0, r) for _, _, r, _ in links] + [(0, None)]
        found = linprog(price, A_eq=balance, b_eq=np.zeros(nodes), bounds=top)
        worst = min(worst, found.x[x])
    return worst * len(members)


def _exchanges(links: list[Any], members: tuple[int, ...]) -> float:
    """Return the rate of the best concurrent flow, a commodity for every source."""
    nodes = 1 + max(max(a, b) for a, b, _, _ in links)
    width = len(links)
    x = width * len(members)
    rows, columns, values = [], [], []
    for i, s in enumerate(members):
        for e, (a, b, _, _) in enumerate(links):
            rows += [i * nodes + a, i * nodes + b]
            columns += [i * width + e] * 2
            values += [-1.0, 1.0]
        for v in members:
            rows.append(i * nodes + v)
            columns.append(x)
            values.append(len(members) - 1.0 if v == s else -1.0)
    shape = (nodes * len(members), x + 1)
    balance = csr_matrix((values, (rows, columns)), shape=shape)
    loads = csr_matrix(
        (
            np.ones(x),
            (list(range(width)) * len(members), range(x)),
        ),
        shape=(width, x + 1),
    )
    price = np.zeros(x + 1)
    price[x] = -1
    found = linprog(
        price,
        A_ub=loads,
        b_ub=[r for _, _, r, _ in links],
        A_eq=balance,
        b_eq=np.zeros(shape[0]),
        method="highs-ipm" if x > 5_000 else "highs",
    )
    return found.x[x] * len(members)


def _reduces(links: list[Any], members: tuple[int, ...], ranks: int) -> float:
    """Return the least of: vectors that must enter ranks, and every member's way.

    With any prices of links, what is sent until a rank has the whole sum pays at least
    a way out for every other member, and what is sent after it a way in.
    """
    inside = range(ranks)
    into = sum(r for _, b, r, _ in links if b in inside)
    to_members = sum(r for _, b, r, _ in links if b in members)
    rates = [into / (2 * (len(members) - 1))]
    if len(members) < ranks:
        rates.append(to_members / len(members))
    for v in members:
        rates.append(_between(links, [u for u in members if u != v], v))
        rates.append(
            _between(
                [(b, a, r, t) for a, b, r, t in links],
                [u for u in members if u != v],
                v,
            )
        )
    rates.append(_priced(links, members, ranks))
    return min(rates)


def _between(links: list[Any], sources: list[int], sink: int) -> float:
    """Return the least cut around a rank, seen from each of the others."""
    nodes = 1 + max(max(a, b) for a, b, _, _ in links)
    least = np.inf
    for s in sources[:1]:
        rows, columns, values = [], [], []
        for e, (a, b, _, _) in enumerate(links):
            rows += [a, b]
            columns += [e, e]
            values += [-1.0, 1.0]
        x = len(links)
        rows += [s, sink]
        columns += [x, x]
        values += [1.0, -1.0]
        balance = csr_matrix((values, (rows, columns)), shape=(nodes, x + 1))
        price = np.zeros(x + 1)
        price[x] = -1
        top = [(0, r) for _, _, r, _ in links] + [(0, None)]
        found = linprog(price, A_eq=balance, b_eq=np.zeros(nodes), bounds=top)
        least = min(least, found.x[x])
    return least


def _priced(links: list[Any], members: tuple[int, ...], ranks: int) -> float:
    """Return the rate that the best prices of links prove, ways out and ways in.

    Prices of links, distances over switches as potentials: for every rank its way out
    (to the nearest rank) and its way in. Whoever is first to have the sum pays neither.
    """
    nodes = 1 + max(max(a, b) for a, b, _, _ in links)
    width, count = len(links), len(members)
    # columns: prices; from every switch to a rank and back; ways out and in of members
    switches = list(range(ranks, nodes))
    place = {s: i for i, s in enumerate(switches)}
    # potentials are shared: way to the nearest rank, and from the nearest rank
    to_rank, from_rank = width, width + len(switches)
    out, back = width + 2 * len(switches), width + 2 * len(switches) + count
    total = back + count
    size = total + 1
    rows, columns, values = [], [], []
    line = 0

    def less(terms: list[tuple[int, float]]) -> None:
        nonlocal line
        for c, v in terms:
            rows.append(line)
            columns.append(c)
            values.append(v)
        line += 1

    who = {m: i for i, m in enumerate(members)}
    for e, (a, b, _, _) in enumerate(links):
        after = [] if b < ranks else [(to_rank + place[b], -1.0)]
        if a >= ranks:  # way from a switch to a rank
            less([(to_rank + place[a], 1.0), (e, -1.0), *after])
        elif a in who:
            less([(out + who[a], 1.0), (e, -1.0), *after])
        before = [] if a < ranks else [(from_rank + place[a], -1.0)]
        if b >= ranks:
            less([(from_rank + place[b], 1.0), (e, -1.0), *before])
        elif b in who:
            less([(back + who[b], 1.0), (e, -1.0), *before])
    everybody = [(c, -1.0) for c in range(out, total)]
    for m in members:  # the first who has it all; when it is a relay, all pay
        others = [t for t in everybody if t[0] not in (out + who[m], back + who[m])]
        less([(total, 1.0), *others])
    upper = csr_matrix((values, (rows, columns)), shape=(line, size))
    equal = np.zeros((1, size))
    equal[0, :width] = [r for _, _, r, _ in links]
    price = np.zeros(size)
    price[total] = -1
    found = linprog(price, A_ub=upper, b_ub=np.zeros(line), A_eq=equal, b_eq=[1.0])
    return 1 / found.x[total]
