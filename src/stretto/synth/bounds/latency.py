"""What latency and bytes cost together in an all_reduce: straight, or by way of others.

Some ranks A are heard of by others B, and all of it leaves a set of nodes that holds A.
Of every byte, either each of A sends its own over the edge, with none of the others in
one sum: |A| crossings. Or somebody's has come to another of the set first, and could
not leave it sooner. In the same way each of B is at the end of a crossing, |B| of them,
or somebody hears from another. With fewer than both there is a crossing after a first
hop and before a last one: some of A sends none, and some of B gets none. So with
`near`, what the edge is closed for to anything, and `far`, to what others pass on,

    sum of rate/m (T - near)  +  sum of rate (T - far)  >=  S

over the links of the edge; m is |A| where only who sends is looked at, |B| where only
who hears is, else the lesser. Where somebody has no hop over the edge, not all can use
it; where nobody can do so, only the second sum is left. Openings and ends of different
ways are not mixed up: see `windows`.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass

from stretto.synth.bounds.cuts import private_switches
from stretto.synth.bounds.windows import Ways, Window, merged
from stretto.synth.network.model import Network

__all__ = ["Crossing", "around_groups", "around_ranks"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Crossing:
    """Who is heard of by whom over which edge, and which of them may do it straight."""

    nodes: frozenset[int]
    sources: Sequence[int]
    targets: Sequence[int]
    before: bool
    """Whether it is looked at who sends."""
    after: bool
    """Whether it is looked at who hears."""

    def windows(self, network: Network, ways: Ways) -> tuple[Window, ...]:
        """Return when the edge carries a byte, all of them at least once."""
        first, last = ways.come(self.sources, self.nodes), ways.left(self.targets)
        start, end, counts = ways.come(self.sources), last, []
        if self.before and all(ways.straight(u, self.nodes) for u in self.sources):
            counts.append(len(self.sources))
            start = start if self.after else dict.fromkeys(self.sources, 0)
        if self.after and all(
            ways.straight(w, self.nodes, backward=True) for w in self.targets
        ):
            counts.append(len(self.targets))
            end = end if self.before else dict.fromkeys(self.targets, 0)
        if self.before:
            first = ways.passed_on(self.sources)
        if self.after:
            last = ways.passed_on(self.targets, backward=True)
        far = ways.closed(first, last, self.nodes)
        found = [(network.links[e].rate, late) for e, late in far.items()]
        if counts:
            near = ways.closed(start, end, self.nodes)
            share = min(counts)
            found += [(network.links[e].rate / share, t) for e, t in near.items()]
        return merged(found)


def around_ranks(
    network: Network, ways: Ways, ranks: Collection[int]
) -> Iterator[Crossing]:
    """Yield what each rank hears of others, and what others hear of it.

    The nearer ones are left out, one distance after another.
    """
    every = frozenset(range(network.num_nodes))
    for v in ranks:
        others = [u for u in network.members if u != v]
        for before in (True, False):
            away = ways.left([v]) if before else ways.come([v])
            for least in sorted({away[u] for u in others}):
                some = [u for u in others if away[u] >= least]
                yield Crossing(
                    nodes=every - {v} if before else frozenset({v}),
                    sources=some if before else [v],
                    targets=[v] if before else some,
                    before=before,
                    after=not before,
                )


def around_groups(
    network: Network, groups: Collection[Collection[int]]
) -> Iterator[Crossing]:
    """Yield what some ranks hear of all others together, and what those hear of them.

    Switches that lead to nobody else are with the ranks.
    """
    every = frozenset(range(network.num_nodes))
    for ranks in groups:
        inside = [v for v in network.members if v in ranks]
        outside = [v for v in network.members if v not in ranks]
        if inside and outside:
            nodes = frozenset(ranks) | private_switches(network, ranks)
            for here, some, others in (
                (nodes, inside, outside), (every - nodes, outside, inside)
            ):  # fmt: skip
                for before, after in ((True, True), (True, False), (False, True)):
                    yield Crossing(
                        nodes=here,
                        sources=some,
                        targets=others,
                        before=before,
                        after=after,
                    )
