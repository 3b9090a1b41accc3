"""What latency and bytes cost together where data leave a set of nodes.

Some ranks have, or add to, what some others want, and all of it leaves a set that holds
the first. A link of its edge serves from when something can have come to it until when
it is too late to go on from it, and what must pass has to fit: that is the plain bound.

Where data are copied, or added up, once over the edge is enough, but costs another hop.
Of every byte that m targets want, either each of them gets it straight over the edge:
m crossings. Or somebody gets it from another outside the set, to whom it came over the
edge: one crossing, and a hop behind it. Sums are the same the other way round: each of
m sources sends its own over the edge, or somebody's has come to another inside first.
So with `near`, what a link of the edge is closed for to anything, and `far`, to what
others pass on, of a volume V at most the far windows hold what crosses once, and

    sum of rate/m (T - near)  +  (1 - 1/m) sum of rate (T - far)  >=  V

over the links of the edge. Where both sums are made and copied, m is the lesser. Where
somebody has no hop over the edge, not all can use it; where nobody can do so, only what
is passed on crosses. Openings and ends of different ways are not mixed up: see
`windows`. Whoever is nearer may be left out: less must pass, and that later.

Where sums are made and copied, hops in front and behind count `apart`, too. Of a byte,
all of m sources must come to all of n targets. A crossing with a hop on both sides may
be all of it; one with a hop on one side only is of one source, or to one target: 1/m
of it, m the lesser; one with neither is of one source to one target. What goes one way
early and the other late may share a link, so each of the two has a window of its own:

    sum of rate (1/mn (T - near) + (1/m - 1/mn) (T - early + T - late)
                 + (1 - 2/m + 1/mn) (T - far))  >=  V
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction

from stretto.synth.bounds.terms import Asked, BoundTerm, gbps, spell
from stretto.synth.bounds.windows import Ways, Window, merged

__all__ = ["COPIED", "SUMMED", "Crossing", "crossing_terms"]

SUMMED = ("all_reduce", "reduce", "reduce_scatter")
COPIED = ("all_gather", "all_reduce", "broadcast")


@dataclass(frozen=True, slots=True, kw_only=True)
class Crossing:
    """Who is heard of by whom over which edge, and which of them may do it straight."""

    nodes: frozenset[int]
    sources: Sequence[int]
    targets: Sequence[int]
    before: bool = False
    """Whether it is looked at who sends."""
    after: bool = False
    """Whether it is looked at who hears."""
    apart: bool = False
    """Whether hops in front of the edge and behind it count each by itself."""

    def windows(self, asked: Asked, ways: Ways) -> tuple[Window, ...]:
        """Return when the edge carries a byte, all of them at least once."""
        links = asked.network.links
        first, last = ways.come(self.sources, self.nodes), ways.left(self.targets)
        start, end, counts = ways.come(self.sources), last, []
        edge = ways.closed(start, end, self.nodes)
        if self.before and all(
            ways.straight(u, edge, self.nodes) for u in self.sources
        ):
            counts.append(len(self.sources))
            start = start if self.after else dict.fromkeys(self.sources, 0)
        if self.after and all(
            ways.straight(w, edge, self.nodes, backward=True) for w in self.targets
        ):
            counts.append(len(self.targets))
            end = end if self.before else dict.fromkeys(self.targets, 0)
        if self.before:
            first = ways.passed_on(self.sources)
        if self.after:
            last = ways.passed_on(self.targets, backward=True)
        far = ways.closed(first, last, self.nodes)
        near = ways.closed(start, end, self.nodes) if counts else {}
        near = {e: min(t[e] for t in (near, far) if e in t) for e in {*near, *far}}
        part = Fraction(1, min(counts)) if counts else Fraction(0)
        shares = [(1 - part, far), (part, near)]
        if self.apart and len(counts) == 2:
            cell = Fraction(1, math.prod(counts))
            early = ways.closed(start, last, self.nodes)
            late = ways.closed(first, end, self.nodes)
            shares = [(1 - 2 * part + cell, far), (cell, near)]
            shares += [(part - cell, early), (part - cell, late)]
        return merged(
            (links[e].rate * share, us)
            for share, closed in shares
            for e, us in closed.items()
        )

    def need(self, asked: Asked) -> Fraction:
        """Return what must cross, of every byte of the size."""
        held, wanted = (
            Fraction(sum(asked.units[v] for v in some), sum(asked.units.values()))
            for some in (self.sources, self.targets)
        )
        match asked.collective:
            case "all_gather" | "gather":
                return held
            case "reduce_scatter" | "scatter":
                return wanted
            case "all_to_all":
                return len(self.sources) * wanted
            case _:
                return Fraction(1)

    def term(self, asked: Asked, ways: Ways) -> BoundTerm:
        """Return the bound that it is."""
        windows, need = self.windows(asked, ways), self.need(asked)
        what = "one vector" if need == 1 else f"{need} of the data"
        who = f"{spell(self.sources)} to {spell(self.targets)}"
        rates = gbps(sum((rate for rate, _ in windows), Fraction(0)))
        others = self.before or self.after
        how = ", straight or by way of others" if others else ""
        return BoundTerm(
            need=need,
            windows=windows,
            why=f"{what} must go from {who} through {rates}{how}",
            proof={
                "kind": "crossing",
                "nodes": sorted(self.nodes),
                "from": list(self.sources),
                "to": list(self.targets),
                "before": self.before,
                "after": self.after,
                "apart": self.apart,
            },
        )


def crossing_terms(
    asked: Asked, ways: Ways, sets: Sequence[frozenset[int]]
) -> Iterator[BoundTerm]:
    """Yield what is proved of all that must leave some sets of nodes."""
    seen = set()
    for nodes in dict.fromkeys(sets):
        for crossing in _crossings(asked, ways, nodes):
            term = crossing.term(asked, ways)
            if term.windows and (term.need, term.windows) not in seen:
                seen.add((term.need, term.windows))
                yield term


def _crossings(asked: Asked, ways: Ways, nodes: frozenset[int]) -> Iterator[Crossing]:
    members, kind = asked.network.members, asked.collective
    inside = [v for v in members if v in nodes]
    outside = [v for v in members if v not in nodes]
    if kind in ("broadcast", "scatter"):
        inside = [v for v in inside if v == asked.root]
    if kind in ("reduce", "gather"):
        outside = [v for v in outside if v == asked.root]
    if not inside or not outside:
        return
    for sources, targets in _nested(ways, inside, outside):
        before = kind in SUMMED and len(sources) > 1
        after = kind in COPIED and len(targets) > 1
        # whoever is one of many stands for them: who is farthest
        one = [ways.farthest(sources, targets)] if after else targets
        other = [ways.farthest(one, sources, backward=True)] if before else sources
        yield Crossing(nodes=nodes, sources=other, targets=one)
        # one that says no more than another comes behind it, and is dropped
        looked = [(before, after, False), (before, after, before and after)]
        looked += [(before, False, False), (False, after, False)]
        for way in dict.fromkeys(looked):
            if any(way):
                yield Crossing(
                    nodes=nodes,
                    sources=sources,
                    targets=targets,
                    before=way[0],
                    after=way[1],
                    apart=way[2],
                )


def _nested(
    ways: Ways, inside: Sequence[int], outside: Sequence[int]
) -> Iterator[tuple[Sequence[int], Sequence[int]]]:
    """Yield all of both, then without the nearer ones, one distance after another."""
    away = ways.left(outside)
    for least in sorted({away[u] for u in inside}):
        yield [u for u in inside if away[u] >= least], outside
    away = ways.come(inside)
    for least in sorted({away[v] for v in outside})[1:]:
        yield inside, [v for v in outside if away[v] >= least]
