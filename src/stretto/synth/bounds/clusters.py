"""Ranks taken together: what holds where they share all they know holds for them, too.

Ranks that are joined far better than they are to others are one rank as far as a bound
is concerned: let them share everything at once, and an all_reduce only gets easier. The
fewer ranks are left, the more each of them must hear of the others. Which to take
together is a guess; what is proved of the network that is left does not depend on it.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction

from stretto.synth.network.model import Network, NetworkLink

__all__ = ["MOST_CLUSTERINGS", "clustered", "clusterings", "groups_of", "prices_of_all"]

_Pair = tuple[int, int]


def clusterings(network: Network, most: int) -> list[tuple[int, ...]]:
    """Return so many ways to take ranks together, the most telling ones first.

    Each names a cluster for every rank. The two that share most are joined, again and
    again, then ranks change their clusters one at a time; what tells is how often all
    clusters with members must be entered, for what joins clusters.
    """
    between = _between(network)
    joined = sorted((-s.worth, s.cluster) for s in _joined(network, between) if s.worth)
    moved = [_moved(network, between, cluster) for _, cluster in joined[:_MOST_MOVED]]
    best = {cluster: less for less, cluster in joined}
    best |= {s.cluster: -s.worth for s in moved}
    return sorted(best, key=lambda c: (best[c], c))[:most]


def groups_of(network: Network, ranks: Iterable[int]) -> list[frozenset[int]]:
    """Return ranks by themselves, boxes, and what clusterings take together."""
    alone = {frozenset({v}) for v in ranks}
    groups = {
        frozenset(r for r, own in enumerate(cluster) if own == name)
        for cluster in (network.box, *clusterings(network, 2 * MOST_CLUSTERINGS))
        for name in cluster
    }
    groups = {g for g in groups if 1 < len(g) < network.num_ranks}
    return [*sorted(alone, key=sorted), *sorted(groups, key=sorted)[:_MOST_GROUPS]]


MOST_CLUSTERINGS = 4
"""How many ways to take ranks together are tried."""
_MOST_GROUPS = 48
_MOST_MOVED = 8
"""Of those, how many are looked at again, rank by rank."""
_MORE = 1.0001


@dataclass(frozen=True, slots=True)
class _State:
    cluster: tuple[int, ...]
    worth: float


def _joined(network: Network, between: Mapping[_Pair, float]) -> Iterator[_State]:
    """Yield what is left after each time that two clusters have become one."""
    members = set(network.members)
    cluster = list(range(network.num_ranks))
    alive = {*cluster}
    while len(alive) > 1 and between:
        kept = {cluster[r] for r in members}
        # who only passes on joins somebody first
        order = ((not {a, b} <= kept, x, -a, -b) for (a, b), x in between.items())
        _, _, a, b = max(order)
        a, b = -a, -b
        cluster = [a if c == b else c for c in cluster]
        alive.discard(b)
        merged: dict[_Pair, float] = defaultdict(float)
        for (u, v), rate in between.items():
            u, v = (a if u == b else u), (a if v == b else v)
            if u != v:
                merged[min(u, v), max(u, v)] += rate
        between = dict(merged)
        count = len({cluster[r] for r in members})
        total = sum(between.values())
        yield _State(tuple(cluster), (count - 1) / total if total else 0.0)


def _moved(
    network: Network, between: Mapping[_Pair, float], cluster: tuple[int, ...]
) -> _State:
    """Return what is left when ranks have gone to where the clusters tell more.

    So whoever passes on for many is not bound to the first whom it joined.
    """
    members, own = {*network.members}, [*cluster]
    near: dict[int, list[tuple[int, float]]] = defaultdict(list)
    for (u, v), rate in between.items():
        near[u].append((v, rate))
        near[v].append((u, rate))
    total = sum(x for (u, v), x in between.items() if own[u] != own[v])
    held = Counter(own[r] for r in members)
    worth, fresh = (len(held) - 1) / total, network.num_ranks
    while True:
        best = worth * _MORE, 0, own[0], total
        for r, here in enumerate(own):
            to = defaultdict(float, {fresh: 0.0})
            for v, rate in near[r]:
                to[own[v]] += rate
            mine = r in members
            entered = len(held) - (mine and held[here] == 1) - 1
            for c, rate in to.items():
                cut = total + to.get(here, 0.0) - rate
                more = entered + (mine and not held[c])
                if c != here and more and more / cut > best[0]:
                    best = more / cut, r, c, cut
        if best[0] == worth * _MORE:
            names = {c: min(r for r, x in enumerate(own) if x == c) for c in {*own}}
            return _State(tuple(names[c] for c in own), worth)
        worth, r, c, total = best
        held -= Counter([own[r]] * (r in members))
        held += Counter([c] * (r in members))
        own[r], fresh = c, fresh + 1


def _between(network: Network) -> dict[_Pair, float]:
    """Return about how much can flow between two ranks, both ways together."""
    n = network.num_ranks
    between: dict[_Pair, float] = defaultdict(float)
    outs: dict[int, list[NetworkLink]] = defaultdict(list)
    ins: dict[int, list[NetworkLink]] = defaultdict(list)
    for k in network.links:
        if max(k.src, k.dst) < n:
            between[min(k.src, k.dst), max(k.src, k.dst)] += float(k.rate)
        elif k.src < n:
            outs[_hub(network, k.dst)].append(k)
        elif k.dst < n:
            ins[_hub(network, k.src)].append(k)
    for hub, leave in outs.items():
        for k in leave:
            ends = [e for e in ins[hub] if e.dst != k.src]
            for e in ends:
                pair = min(k.src, e.dst), max(k.src, e.dst)
                between[pair] += float(min(k.rate, e.rate)) / len(ends)
    return dict(between)


def _hub(network: Network, switch: int) -> int:
    """Return the first of the switches that are joined to one."""
    n = network.num_ranks
    seen, queue = {switch}, [switch]
    for v in queue:
        for k in network.links:
            if k.src == v and k.dst >= n and k.dst not in seen:
                seen.add(k.dst)
                queue.append(k.dst)
    return min(seen)


def clustered(network: Network, cluster: tuple[int, ...]) -> Network:
    """Return the network in which every cluster is one rank."""
    place = _places(network, cluster)
    count, n = len(set(cluster)), network.num_ranks
    rates: dict[_Pair, Fraction] = defaultdict(Fraction)
    for k in network.links:
        if place[k.src] != place[k.dst]:
            rates[place[k.src], place[k.dst]] += k.rate
    links = tuple(
        NetworkLink(src=u, dst=v, rate=r) for (u, v), r in sorted(rates.items())
    )
    return replace(
        network,
        num_ranks=count,
        num_nodes=count + network.num_nodes - n,
        links=links,
        box=tuple(range(count)),
        members=tuple(sorted({place[r] for r in network.members})),
        generators=(),
        machine=None,
        places=(),
    )


def prices_of_all(
    network: Network, cluster: tuple[int, ...], prices: Sequence[int]
) -> list[int]:
    """Return prices of all links, given those of the network of clusters."""
    place = _places(network, cluster)
    links = clustered(network, cluster).links
    known = {(k.src, k.dst): p for k, p in zip(links, prices, strict=True)}
    return [known.get((place[k.src], place[k.dst]), 0) for k in network.links]


def _places(network: Network, cluster: tuple[int, ...]) -> list[int]:
    """Return the node that every node is in the network of clusters."""
    names = sorted(set(cluster))
    new = {c: i for i, c in enumerate(names)}
    switches = range(network.num_nodes - network.num_ranks)
    return [new[c] for c in cluster] + [len(names) + s for s in switches]
