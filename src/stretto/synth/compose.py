"""Collectives that combine: time reversed, and reduce_scatter followed by all_gather.

A sum that flows to its owner is the owner's data spreading, seen backwards: links turn
round, and the last transfer becomes the first.
"""

from __future__ import annotations

from fractions import Fraction

from stretto.synth.model import microseconds
from stretto.synth.schedule import Demand, Move, Schedule

__all__ = ["backwards", "joined"]


def backwards(schedule: Schedule, demand: Demand) -> Schedule:
    """Return `schedule` in reverse: reduce_scatter, reduce or gather.

    `schedule` was made for the network with its links turned round.
    """
    links = demand.network.links
    share = {c.number: c.share for c in demand.chunks()}

    def ends(m: Move) -> Fraction:
        rate = min(links[e].rate for e in m.links)
        alpha = sum((links[e].alpha for e in m.links), Fraction(0))
        return m.start + microseconds(demand.nbytes * share[m.chunk], rate) + alpha

    last = max(map(ends, schedule.folded))

    def turned(moves: tuple[Move, ...]) -> tuple[Move, ...]:
        return tuple(
            Move(last - ends(m), m.chunk, m.dst, m.src, m.links[::-1], demand.combines)
            for m in sorted(moves, key=ends, reverse=True)
        )

    return Schedule(
        demand=demand,
        moves=turned(schedule.moves),
        generator=f"{schedule.generator}, backwards",
        symmetry=schedule.symmetry,
        folded=turned(schedule.folded),
    )


def joined(first: Schedule, second: Schedule, demand: Demand) -> Schedule:
    """Return all_reduce: sums to their owners, then every owner's sum to everybody.

    The seam is soft: a sum that is complete spreads while others still flow.
    """
    assert first.symmetry is not None  # generators always say how they folded
    assert second.symmetry is not None
    assert first.symmetry.nodes == second.symmetry.nodes
    end = max(m.start for m in first.folded)

    def merged(a: tuple[Move, ...], b: tuple[Move, ...]) -> tuple[Move, ...]:
        return a + tuple(m._replace(start=m.start + end) for m in b)

    return Schedule(
        demand=demand,
        moves=merged(first.moves, second.moves),
        generator=f"{first.generator}, then {second.generator}",
        symmetry=first.symmetry,
        folded=merged(first.folded, second.folded),
    )
