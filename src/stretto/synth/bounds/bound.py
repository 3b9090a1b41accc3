"""What no schedule can beat: each bound is what must pass some links, with its proof.

`size` is the full vector S of a collective: all_gather's output, reduce_scatter's
input, the vector of all_reduce and broadcast, one rank's buffer of all_to_all, the
root's buffer of gather and scatter.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

from stretto.errors import CallError, TopologyError, UnknownNameError
from stretto.synth.bounds.all_reduce import both_halves, reducing_terms
from stretto.synth.bounds.clusters import groups_of
from stretto.synth.bounds.crossings import crossing_terms
from stretto.synth.bounds.cuts import (
    broadcast_cut,
    edges_around,
    gather_cut,
    scatter_cut,
)
from stretto.synth.bounds.flows import ExchangeFlow, exchange_flow
from stretto.synth.bounds.terms import Asked, BoundTerm, gbps
from stretto.synth.bounds.windows import Ways, paid_windows
from stretto.synth.network.distances import Distances
from stretto.synth.network.model import Network
from stretto.synth.network.symmetry import Symmetry, find_symmetry, trivial

__all__ = ["COLLECTIVES", "ROOTED", "Bounds", "bound"]

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
class Bounds:
    """The bounds of one collective on one network."""

    asked: Asked
    terms: tuple[BoundTerm, ...]
    steps: int
    """Transfers, one after another, that any schedule needs."""
    note: str = ""
    flow: ExchangeFlow | None = None
    """Of all_to_all, what flows at best."""

    @property
    def algbw(self) -> Fraction:
        """Return the rate that no schedule exceeds for any size, GB/s."""
        return min(t.algbw for t in self.terms if t.algbw is not None)

    def us(self, nbytes: int) -> Fraction:
        """Return the time that no schedule goes below."""
        return max(t.us(nbytes) for t in self.terms)

    def binding(self, nbytes: int) -> BoundTerm:
        """Return the term that decides for this size."""
        return max(self.terms, key=lambda t: t.us(nbytes))

    def certificate(self, nbytes: int) -> dict[str, Any]:
        """Return what proves the bound of a size, as JSON can hold it.

        Who checks it needs the links and the proof, and nothing of this room.
        """
        asked, network = self.asked, self.asked.network
        return {
            "collective": asked.collective,
            "ranks": network.num_ranks,
            "members": list(network.members),
            "units": list(asked.units.values()),
            "root": asked.root,
            "links": [[k.src, k.dst, str(k.rate), str(k.alpha)] for k in network.links],
            "nbytes": nbytes,
            "us": str(self.us(nbytes)),
            "proof": dict(self.binding(nbytes).proof),
        }


def bound(
    collective: str,
    network: Network,
    *,
    root: int = 0,
    symmetry: Symmetry | None = None,
    weights: tuple[int, ...] = (),
) -> Bounds:
    """Return every bound of a collective, each with its certificate.

    `weights` are the relative sizes of the members' parts; equal when not given.
    """
    _check_asked(collective, network, weights)
    if len(set(weights)) > 1:
        symmetry = trivial(network)
    elif symmetry is None and collective in _SYMMETRIC:
        symmetry = find_symmetry(network)
    backward = collective in ("reduce_scatter", "reduce", "gather")
    away = Distances(network.reversed if backward else network)
    _check_ways(network, away, root if collective in ROOTED else None)
    units = weights or (1,) * len(network.members)
    asked = Asked(
        collective=collective,
        network=network,
        root=root,
        units=dict(zip(network.members, units, strict=True)),
    )
    roots = (root,) if collective in ROOTED else network.members
    if symmetry is not None and collective not in ROOTED:
        roots = symmetry.representatives
    late, *ends = away.farthest(roots, network.members)
    src, dst = ends[::-1] if backward else ends
    far = BoundTerm(
        late=late,
        why=f"latency of rank {src} to {dst}",
        proof={"kind": "distance", "from": src, "to": dst},
    )
    note, ways, flow = "", Ways(network), None
    if collective == "all_to_all":
        flow = exchange_flow(network, symmetry, weights=weights)
    if collective == "all_reduce":
        assert symmetry is not None  # it is looked for
        terms = (*reducing_terms(asked, symmetry, ways), far)
        twice = gbps(both_halves(asked, symmetry))
        note = (
            f"reduce_scatter then all_gather reaches {twice} at best; that this is"
            " optimal is not proved in general"
        )
    else:
        terms = (*_rates(asked, symmetry, ways, flow, backward=backward), far)
    return Bounds(
        asked=asked,
        terms=terms,
        steps=away.most_steps(roots, network.members),
        note=note,
        flow=flow,
    )


def _check_asked(collective: str, network: Network, weights: tuple[int, ...]) -> None:
    if collective not in COLLECTIVES:
        raise UnknownNameError.among("bounded collective", collective, COLLECTIVES)
    if len(network.members) < 2:
        raise TopologyError(f"{network.name}: 1 rank; want two or more")
    if weights and len(weights) != len(network.members):
        raise CallError(
            f"bound {collective}: {len(weights)} weights;"
            f" want one for each of {len(network.members)} ranks"
        )


def _rates(
    asked: Asked,
    symmetry: Symmetry | None,
    ways: Ways,
    flow: ExchangeFlow | None,
    *,
    backward: bool,
) -> Iterator[BoundTerm]:
    """Yield the bounds that grow with the size, of all but all_reduce."""
    network, weights = asked.network, tuple(asked.units.values())
    every = frozenset(range(network.num_nodes))
    roots = network.members if symmetry is None else symmetry.representatives
    way = network.reversed if backward else network
    if flow is not None:
        yield from _exchange_terms(asked, ways, flow)
        cuts = []
    elif asked.collective in ("all_gather", "reduce_scatter"):
        cuts = [gather_cut(way, symmetry, weights)]
    elif asked.collective in ("broadcast", "reduce"):
        cuts = [broadcast_cut(way, asked.root)]
    else:
        cuts = [scatter_cut(way, asked.root, weights)]
    sets = [every - cut.nodes if backward else cut.nodes for cut in cuts]
    sets += edges_around(network, groups_of(network, roots))
    yield from crossing_terms(asked, ways, sets)


def _exchange_terms(
    asked: Asked, ways: Ways, flow: ExchangeFlow
) -> Iterator[BoundTerm]:
    """Yield what the lengths of flows prove: all that is sent pays its way.

    Pairs that are near are left out, one distance after another.
    """
    network, members = asked.network, asked.network.members
    symmetry, units = flow.symmetry, tuple(asked.units.values())
    closed = ways.closed(ways.come(members), ways.left(members))
    far = {s: ways.away_us(s) for s in symmetry.representatives}
    distances = {away[v] for s, away in far.items() for v in members if v != s}
    many = len(far) * len(network.links) > _MOST_EXCHANGED
    for least in sorted(distances)[: 1 if many else None]:
        if least > min(distances):
            wanted = {
                s: [v for v in members if v != s and away[v] >= least]
                for s, away in far.items()
            }
            flow = exchange_flow(network, symmetry, weights=units, wanted=wanted)
        pairs = zip(network.links, flow.lengths, strict=True)
        paid = [k.rate * w for k, w in pairs]
        # the rate is of a unit: the volume over what all units travel
        need = sum(paid, Fraction(0)) / (flow.rate * sum(units))
        nearer = f" that are {float(least):g} us away" if least > min(distances) else ""
        yield BoundTerm(
            need=need,
            windows=paid_windows(paid, closed, least),
            why=f"concurrent flow: {gbps(flow.rate)} a pair{nearer};"
            f" {sum(1 for w in flow.lengths if w)} links carry dual lengths",
            proof={
                "kind": "lengths",
                "lengths": [str(x) for x in flow.lengths],
                "least": str(least),
            },
        )


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


_SYMMETRIC = ("all_gather", "all_reduce", "all_to_all", "reduce_scatter")

_MOST_EXCHANGED = 20_000
"""Ranks that are not alike times links up to which distances are looked at."""
