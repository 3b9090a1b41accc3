"""Collectives that combine: time reversed, and reduce_scatter followed by all_gather.

A sum that flows to its owner is the owner's data spreading, seen backwards: links turn
round, and the last transfer becomes the first.
"""

from __future__ import annotations

from fractions import Fraction

from stretto.synth.network.model import microseconds
from stretto.synth.schedules.schedule import Demand, TimedMove, TimedSchedule, Wave

__all__ = ["backwards", "joined"]


def backwards(schedule: TimedSchedule, demand: Demand) -> TimedSchedule:
    """Return `schedule` in reverse: reduce_scatter, reduce or gather.

    `schedule` was made for the network with its links turned round.
    """
    links = demand.network.links
    share = {c.number: c.share for c in demand.chunks()}

    def ends(m: TimedMove) -> Fraction:
        rate = min(links[e].rate for e in m.links)
        alpha = sum((links[e].alpha for e in m.links), Fraction(0))
        return m.start + microseconds(demand.nbytes * share[m.chunk], rate) + alpha

    last = max(map(ends, schedule.folded))
    label = {  # what is last in a loop is first now: it is called so
        c: other
        for w in schedule.waves
        for c, other in zip(w.chunks, reversed(w.chunks), strict=True)
    }

    def turned(moves: tuple[TimedMove, ...]) -> tuple[TimedMove, ...]:
        return tuple(
            TimedMove(
                last - ends(m),
                label.get(m.chunk, m.chunk),
                m.dst,
                m.src,
                m.links[::-1],
                demand.combines,
            )
            for m in sorted(moves, key=ends, reverse=True)
        )

    def latest(w: Wave) -> TimedMove:
        late = w.move.start + (len(w.chunks) - 1) * schedule.pace
        return w.move._replace(start=late, chunk=w.chunks[-1])

    return TimedSchedule(
        demand=demand,
        moves=turned(schedule.moves),
        generator=f"{schedule.generator}, backwards",
        symmetry=schedule.symmetry,
        folded=turned(schedule.folded),
        waves=tuple(
            Wave(move, w.chunks)
            for w in schedule.waves
            for move in turned((latest(w),))
        ),
        pace=schedule.pace,
    )


def joined(
    first: TimedSchedule, second: TimedSchedule, demand: Demand
) -> TimedSchedule:
    """Return all_reduce: sums to their owners, then every owner's sum to everybody.

    The seam is soft: a sum that is complete spreads while others still flow.
    """
    assert first.symmetry is not None  # generators always say how they folded
    assert second.symmetry is not None
    assert first.symmetry.nodes == second.symmetry.nodes
    end = max(m.start for m in first.folded)

    def merged(
        a: tuple[TimedMove, ...], b: tuple[TimedMove, ...]
    ) -> tuple[TimedMove, ...]:
        return a + tuple(m._replace(start=m.start + end) for m in b)

    return TimedSchedule(
        demand=demand,
        moves=merged(first.moves, second.moves),
        generator=f"{first.generator}, then {second.generator}",
        symmetry=first.symmetry,
        folded=merged(first.folded, second.folded),
        waves=first.waves + second.waves if first.pace == second.pace else (),
        pace=first.pace if first.pace == second.pace else Fraction(0),
    )
