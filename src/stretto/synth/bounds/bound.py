"""What no schedule can beat: each bound is a line `alpha + bytes/rate`, with its proof.

`size` is the full vector S of a collective: all_gather's output, reduce_scatter's
input, the vector of all_reduce and broadcast, one rank's buffer of all_to_all, the
root's buffer of gather and scatter.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from fractions import Fraction

from stretto.errors import CallError, TopologyError, UnknownNameError
from stretto.synth.bounds.clusters import clustered, clusterings
from stretto.synth.bounds.cuts import Cut, broadcast_cut, gather_cut, scatter_cut, weigh
from stretto.synth.bounds.flows import exchange_flow
from stretto.synth.bounds.latency import levels
from stretto.synth.bounds.link_prices import gossip_rate
from stretto.synth.network.distances import Distances
from stretto.synth.network.model import Network
from stretto.synth.network.symmetry import Symmetry, find_symmetry, trivial

__all__ = ["COLLECTIVES", "ROOTED", "Bound", "Term", "bound"]

COLLECTIVES = (
    "all_gather",
    "all_reduce",
    "all_to_all",
    "broadcast",
    "gather",
    "reduce",
    "reduce_scatter",
    "scatter",
)


ROOTED = ("broadcast", "reduce", "gather", "scatter")
"""Those in which one of the ranks has or gets everything."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Term:
    """One lower bound: `alpha` us plus the size over `algbw` GB/s."""

    alpha: Fraction
    algbw: Fraction | None
    """None when the bound does not grow with the size."""
    why: str
    """The certificate, in words that can be checked."""
    other: Term | None = None
    """What holds instead where it is less."""

    def us(self, nbytes: int) -> Fraction:
        """Return the bound for a size."""
        if self.algbw is None:
            return self.alpha
        us = self.alpha + Fraction(nbytes) / (self.algbw * 1000)
        return us if self.other is None else min(us, self.other.us(nbytes))


@dataclass(frozen=True, slots=True, kw_only=True)
class Bound:
    """The bounds of one collective on one network."""

    collective: str
    network: str
    terms: tuple[Term, ...]
    steps: int
    """Transfers, one after another, that any schedule needs."""
    note: str = ""

    @property
    def algbw(self) -> Fraction:
        """Return the rate that no schedule exceeds for any size, GB/s."""
        return min(t.algbw for t in self.terms if t.algbw is not None)

    def us(self, nbytes: int) -> Fraction:
        """Return the time that no schedule goes below."""
        return max(t.us(nbytes) for t in self.terms)

    def binding(self, nbytes: int) -> Term:
        """Return the term that decides for this size."""
        return max(self.terms, key=lambda t: t.us(nbytes))


def bound(
    collective: str,
    network: Network,
    *,
    root: int = 0,
    symmetry: Symmetry | None = None,
    weights: tuple[int, ...] = (),
) -> Bound:
    """Return every bound of a collective, each with its certificate.

    `weights` are the relative sizes of the members' parts; equal when not given.
    """
    if collective not in COLLECTIVES:
        raise UnknownNameError.among("bounded collective", collective, COLLECTIVES)
    if len(network.members) < 2:
        raise TopologyError(f"{network.name}: 1 rank; want two or more")
    if weights and len(weights) != len(network.members):
        raise CallError(
            f"bound {collective}: {len(weights)} weights;"
            f" want one for each of {len(network.members)} ranks"
        )
    if collective in ("reduce_scatter", "reduce", "gather"):
        network = network.reversed  # time runs backwards, links turn round
    if len(set(weights)) > 1:
        symmetry = trivial(network)
    elif symmetry is None and collective in _SYMMETRIC:
        symmetry = find_symmetry(network)
    away = Distances(network)
    _check_ways(network, away, root if collective in ROOTED else None)
    terms = list(_rates(collective, network, symmetry, away, root, weights))
    roots = (root,) if collective in ROOTED else tuple(_starts(network, symmetry))
    far = away.farthest(roots, network.members)
    terms.append(
        Term(alpha=far[0], algbw=None, why=f"latency of rank {far[1]} to {far[2]}")
    )
    steps = away.most_steps(roots, network.members)
    return Bound(
        collective=collective,
        network=network.name,
        terms=tuple(terms),
        steps=steps,
        note=_both_halves(network, symmetry) if collective == "all_reduce" else "",
    )


def _rates(
    collective: str,
    network: Network,
    symmetry: Symmetry | None,
    away: Distances,
    root: int,
    weights: tuple[int, ...],
) -> Iterator[Term]:
    """Yield the bounds that grow with the size."""
    count = sum(weights) or len(network.members)
    match collective:
        case "all_gather" | "reduce_scatter":
            assert symmetry is not None  # it is looked for
            yield from _gather_terms(network, symmetry, away, weights)
        case "all_reduce":
            first = list(_reduce_terms(network))
            yield from first
            yield from _gossip_term(network, min(t.algbw for t in first if t.algbw))
            yield from _level_terms(network)
        case "all_to_all":
            flow = exchange_flow(network, symmetry, weights=weights)
            why = (
                f"concurrent flow: {_gbps(flow.rate)} a pair;"
                f" {sum(1 for w in flow.lengths if w)} links carry dual lengths"
            )
            yield Term(alpha=Fraction(0), algbw=flow.rate * count, why=why)
        case "broadcast" | "reduce":
            cut = broadcast_cut(network, root)
            yield _term(network, cut, cut.capacity, away, everyone=True)
        case _:
            cut = scatter_cut(network, root, weights)
            yield _term(network, cut, cut.rate * count, away, everyone=False)


def _check_ways(network: Network, away: Distances, root: int | None) -> None:
    """Refuse a network on which somebody hears nothing of somebody."""
    first = network.members[0] if root is None else root
    if first not in network.members:
        raise CallError(f"root={first}; want one of {network.members}")
    others = [v for v in network.members if v != first]
    wanting = [v for v in others if not away.reaches(first, v)]
    silent = [v for v in others if not away.reaches(v, first)] if root is None else []
    if wanting or silent:
        what = "nothing reaches" if wanting else "nothing leaves"
        ranks = [network.place(r) for r in wanting or silent]
        raise TopologyError(
            f"{network.name}: {what} ranks {ranks}, seen from rank"
            f" {network.place(first)};"
            " want a chain of links that are not dead"
        )


def _both_halves(network: Network, symmetry: Symmetry | None) -> str:
    """Return what is known of all_reduce beyond its bound."""
    twice = gather_cut(network, symmetry).rate * len(network.members) / 2
    return (
        f"reduce_scatter then all_gather reaches {_gbps(twice)} at best;"
        " that this is optimal is not proved in general"
    )


_SYMMETRIC = ("all_gather", "all_reduce", "all_to_all", "reduce_scatter")


def _starts(network: Network, symmetry: Symmetry | None) -> tuple[int, ...]:
    return network.members if symmetry is None else symmetry.representatives


def _gbps(rate: Fraction) -> str:
    return f"{float(rate):.6g} GB/s"


def _gather_terms(
    network: Network, symmetry: Symmetry, away: Distances, weights: tuple[int, ...]
) -> Iterator[Term]:
    """Yield the narrowest cut, every rank's ports and every box's edge."""
    members = network.members
    units = dict(zip(members, weights or (1,) * len(members), strict=True))
    count = sum(units.values())
    best = gather_cut(network, symmetry, weights)
    yield _term(network, best, best.rate * count, away, everyone=True)
    every = frozenset(range(network.num_nodes))
    cuts = [every - {v} for v in symmetry.representatives]
    for box in sorted({network.box[v] for v in symmetry.representatives}):
        inside = {v for v in members if network.box[v] == box}
        if len(inside) < len(members):
            private = _private_switches(network, inside)
            cuts.append(every - inside - private)
    for nodes in cuts:
        cut = weigh(network, nodes, units)
        yield _term(network, cut, cut.rate * count, away, everyone=True)


def _private_switches(network: Network, inside: set[int]) -> set[int]:
    """Return the switches whose every link stays among these ranks."""
    joined: dict[int, set[int]] = {}
    for k in network.links:
        joined.setdefault(k.src, set()).add(k.dst)
        joined.setdefault(k.dst, set()).add(k.src)
    n = network.num_ranks
    return {v for v in range(n, network.num_nodes) if joined.get(v, set()) <= inside}


def _reduce_terms(network: Network) -> Iterator[Term]:
    """Yield what is proved of all_reduce: every sum is made and told to everyone.

    Until somebody has a sum, all but one contribution have entered a rank; then it
    enters all members but one. Where relays add up, they are among those ranks, and a
    member may hear nothing but the sum.
    """
    count = len(network.members)
    members = set(network.members)
    everybody = set(range(network.num_ranks))
    for twice, ranks in ((True, everybody), (False, members)):
        if twice or ranks != everybody:
            into = sum((k.rate for k in network.links if k.dst in ranks), Fraction(0))
            yield Term(
                alpha=Fraction(0),
                algbw=into / (2 * (count - 1) if twice else count),
                why=f"{f'2 x {count - 1}' if twice else count} vectors must enter"
                f" ranks whose links sum to {_gbps(into)}",
            )
    root = network.members[0]
    for way in (network, network.reversed):
        cut = broadcast_cut(way, root)
        inside = sorted(v for v in members if v in cut.nodes)
        verb = "leave" if way is network else "enter"
        yield Term(
            alpha=Fraction(0),
            algbw=cut.capacity,
            why=f"one vector must {verb} {_spell(network, inside)} through"
            f" {_gbps(cut.capacity)}",
        )


def _gossip_term(network: Network, known: Fraction) -> Iterator[Term]:
    """Yield what prices of links prove; of large networks they are not looked for."""
    if network.num_ranks * len(network.links) > _MOST_PRICED:
        return
    for cluster in (*clusterings(network, _CLUSTERINGS), None):
        small = network if cluster is None else clustered(network, cluster)
        found = gossip_rate(small, known) if len(small.members) > 1 else None
        if found is None:
            continue
        known, priced = found
        whose = ""
        if cluster is not None:
            whose = f" between {small.num_ranks} clusters of ranks that share all"
        yield Term(
            alpha=Fraction(0),
            algbw=known,
            why=f"prices of {priced} links{whose}: what is sent until somebody has the"
            f" sum, and all have heard of it, fits {_gbps(known)}",
        )


def _level_terms(network: Network) -> Iterator[Term]:
    """Yield what latency and bytes cost together, of every rank that differs."""
    seen = set()
    for line, less, rank in levels(network):
        if (line, less) not in seen:
            seen.add((line, less))
            why = f"rank {rank} hears of others in one hop each, or of some in two"
            other = (
                None
                if less is None
                else Term(alpha=less.alpha, algbw=less.algbw, why=why)
            )
            yield Term(alpha=line.alpha, algbw=line.algbw, why=why, other=other)


_CLUSTERINGS = 4
"""How many ways to take ranks together are tried."""
_MOST_PRICED = 20_000
"""Ranks times links up to which prices for all_reduce are looked for."""


def _term(
    network: Network, cut: Cut, algbw: Fraction, away: Distances, *, everyone: bool
) -> Term:
    """Return a cut as a term: the last bytes through it still have a way to go."""
    outside = [v for v in network.members if v not in cut.nodes]
    alpha = away.tail(cut.nodes, outside, every=everyone)
    kept = _spell(network, outside)
    amount = f"the data of {cut.roots} ranks" if everyone else f"{cut.roots} parts"
    why = f"{amount} reach {kept} through {_gbps(cut.capacity)}"
    return Term(alpha=alpha, algbw=algbw, why=why)


def _spell(network: Network, ranks: list[int]) -> str:
    if len(ranks) == 1:
        return f"rank {ranks[0]}"
    if len(ranks) > 1 and ranks == list(range(ranks[0], ranks[-1] + 1)):
        return f"ranks {ranks[0]} to {ranks[-1]}"
    return f"ranks {', '.join(map(str, ranks[:8]))}{'...' if len(ranks) > 8 else ''}"
