"""What is proved of all_reduce: every sum is made and told to everyone."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from fractions import Fraction

from stretto.synth.bounds.clusters import (
    MOST_CLUSTERINGS,
    clustered,
    clusterings,
    groups_of,
    prices_of_all,
)
from stretto.synth.bounds.crossings import crossing_terms
from stretto.synth.bounds.cuts import broadcast_cut, edges_around, gather_cut
from stretto.synth.bounds.link_prices import Prices, gossip_prices
from stretto.synth.bounds.terms import Asked, BoundTerm, gbps
from stretto.synth.bounds.windows import Ways, paid_windows
from stretto.synth.network.symmetry import Symmetry

__all__ = ["both_halves", "reducing_terms"]

_MOST_PRICED = 20_000
"""Ranks times links up to which prices for all_reduce are looked for."""


def reducing_terms(asked: Asked, symmetry: Symmetry, ways: Ways) -> Iterator[BoundTerm]:
    """Yield the bounds of all_reduce that grow with the size.

    Until somebody has a sum, all but one contribution have entered a rank; then it
    enters all members but one. Where relays add up, they are among those ranks, and a
    member may hear nothing but the sum.
    """
    network = asked.network
    count, ranks = len(network.members), range(network.num_ranks)
    pricing = _Pricing(asked, ways)
    known = []
    whole = count == network.num_ranks
    plain_worths = ((ranks, 2 * (count - 1)), (network.members, count))
    for entered, worth in plain_worths[:1] if whole else plain_worths:
        entering = {*entered}
        ones = tuple(int(k.dst in entering) for k in network.links)
        plain = Prices(prices=ones, worth=worth, trees={})
        known.append(plain.rate(network))
        into = gbps(known[-1] * worth)
        why = f"{worth} vectors must enter ranks whose links sum to {into}"
        yield pricing.term(plain, why)
    every = frozenset(range(network.num_nodes))
    first = broadcast_cut(network, network.members[0])
    last = broadcast_cut(network.reversed, network.members[0])
    known += (first.capacity, last.capacity)
    if network.num_ranks * len(network.links) <= _MOST_PRICED:
        reached = both_halves(asked, symmetry) if whole else None
        yield from _priced(pricing, min(known), reached)
    sets = [first.nodes, every - last.nodes]
    sets += edges_around(network, groups_of(network, symmetry.representatives))
    yield from crossing_terms(asked, ways, sets)


def both_halves(asked: Asked, symmetry: Symmetry) -> Fraction:
    """Return the rate of reduce_scatter then all_gather."""
    network = asked.network
    there, back = (
        gather_cut(way, symmetry).rate for way in (network.reversed, network)
    )
    return len(network.members) / (1 / there + 1 / back)


class _Pricing:
    """Makes terms of prices."""

    def __init__(self, asked: Asked, ways: Ways) -> None:
        self.network = asked.network
        members = asked.network.members
        self._closed = ways.closed(ways.come(members), ways.left(members))

    def term(
        self, found: Prices, why: str, clusters: tuple[int, ...] | None = None
    ) -> BoundTerm:
        """Return what prices prove: they may be of a network of clusters."""
        prices: Sequence[int] = found.prices
        if clusters is not None:
            prices = prices_of_all(self.network, clusters, prices)
        links = self.network.links
        return BoundTerm(
            need=Fraction(found.worth),
            windows=paid_windows(
                (k.rate * p for k, p in zip(links, prices, strict=True)), self._closed
            ),
            why=why,
            proof={
                "kind": "prices",
                "prices": list(prices),
                "backward": found.backward,
                "clusters": clusters and list(clusters),
                "trees": {str(r): sets for r, sets in found.trees.items()},
            },
        )


def _priced(
    pricing: _Pricing, known: Fraction, reached: Fraction | None
) -> Iterator[BoundTerm]:
    """Yield what prices of links prove, as long as something better may be proved."""
    network = pricing.network
    for cluster in (*clusterings(network, MOST_CLUSTERINGS), None):
        if reached is not None and known <= reached:
            return  # there and back takes no longer
        small = network if cluster is None else clustered(network, cluster)
        if len(small.members) < 2:
            continue
        found = gossip_prices(small, known)
        if found is None:
            continue
        known = found.rate(small)
        whose = ""
        if cluster is not None:
            whose = f" between {small.num_ranks} clusters of ranks that share all"
        yield pricing.term(
            found,
            f"prices of {sum(1 for p in found.prices if p)} links{whose}: what is sent"
            " until somebody has the sum, and all have heard of it, fits"
            f" {gbps(known)}",
            cluster,
        )
