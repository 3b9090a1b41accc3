"""Pipelined schedules as loops: many pieces take the same ways, one after another.

On each of its ways the first piece of a tree goes in some wave, the next piece one wave
later, and so on; within a wave the ways follow one another in a fixed order. So a way
is one row, however many pieces there are, and a loop over the waves is the program.
Pieces of one rank that take exactly the same ways are found. Links then serve in the
order of the loop: only when that does not take too long, by exact replay, is it kept.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import replace
from fractions import Fraction
from typing import NamedTuple

from stretto.synth.schedules.replay import replay
from stretto.synth.schedules.schedule import TimedMove, TimedSchedule, Wave
from stretto.synth.schedules.unfold import images

__all__ = ["LoopRow", "in_waves", "rows_of"]

_FEWER = 4  # times fewer rows, or a table of single moves is as good
_LOOPED = ("all_gather", "all_reduce", "broadcast", "reduce", "reduce_scatter")


class LoopRow(NamedTuple):
    """A way as a row of the loop."""

    first: int
    """The wave of the first chunk."""
    move: TimedMove
    """Of the first chunk."""
    chunks: tuple[int, ...]


def rows_of(schedule: TimedSchedule, *, combine: bool) -> list[LoopRow]:
    """Return the ways of sums or of copies, in the order that they have in a wave."""
    waves = [w for w in schedule.waves if w.move.combine == combine]
    start = min((w.move.start for w in waves), default=Fraction(0))
    rows = []
    for w in waves:
        first, late = divmod(w.move.start - start, schedule.pace)
        row = LoopRow(int(first), w.move, w.chunks)
        rows.append((late, first, w.move.chunk, w.move.src, w.move.dst, row))
    return [row for *_, row in sorted(rows, key=lambda entry: entry[:5])]


def in_waves(schedule: TimedSchedule, most: Fraction) -> TimedSchedule:
    """Return the schedule in the order of a loop, or as it is if that is too slow.

    It may take `most` us. A plan that is only a list stays one.
    """
    demand, symmetry = schedule.demand, schedule.symmetry
    whole = len(demand.network.members) == demand.network.num_ranks
    if schedule.waves or schedule.listed or symmetry is None or not whole:
        return schedule
    if demand.collective not in _LOOPED:
        return schedule
    ways = list(_ways(schedule))
    if _FEWER * len(ways) > len(schedule.folded):
        return schedule
    paces = sorted(
        (w[-1].start - w[0].start) / (len(w) - 1) for w in ways if len(w) > 1
    )
    for pace in (p for p in (paces[len(paces) // 2], paces[0]) if p > 0):
        for since in (_first, _mean):
            waves = tuple(
                Wave(m[0]._replace(start=since(m, pace)), tuple(x.chunk for x in m))
                for m in ways
            )
            looped = _looped(replace(schedule, waves=waves, pace=pace))
            if replay(looped).us <= most:
                return looped
    return schedule


def _ways(schedule: TimedSchedule) -> Iterator[list[TimedMove]]:
    """Yield, for every way of every class, the moves of its pieces in their order.

    A class is the chunks of one rank that take the same ways.
    """
    origin = {c.number: c.origin for c in schedule.demand.chunks()}
    taken: dict[tuple[int, bool], list[TimedMove]] = defaultdict(list)
    for m in schedule.folded:
        taken[m.chunk, m.combine].append(m)
    classes: dict[tuple[object, ...], list[list[TimedMove]]] = defaultdict(list)
    for (chunk, combine), moves in taken.items():
        ways = frozenset((m.src, m.dst, m.links) for m in moves)
        classes[origin[chunk], combine, ways].append(moves)
    for found in classes.values():
        by_way: dict[tuple[object, ...], list[TimedMove]] = defaultdict(list)
        for moves in sorted(found, key=lambda ms: (min(m.start for m in ms), ms[0][1])):
            for m in moves:
                by_way[m.src, m.dst, m.links].append(m)
        yield from by_way.values()


def _first(moves: Sequence[TimedMove], _pace: Fraction) -> Fraction:
    """Return when the first piece goes a way."""
    return moves[0].start


def _mean(moves: Sequence[TimedMove], pace: Fraction) -> Fraction:
    """Return when the first piece would go a way, seen from all the pieces."""
    total = sum((m.start for m in moves), Fraction(0))
    return total / len(moves) - pace * (len(moves) - 1) / 2


def _looped(schedule: TimedSchedule) -> TimedSchedule:
    """Return the moves in the order of the loop: all sums, then what spreads."""
    symmetry = schedule.symmetry
    assert symmetry is not None  # generators always say how they folded
    when = {(m.chunk, m.src, m.dst, m.combine): m.start for m in schedule.folded}
    numbered = [
        (not combine, row.first + i, place, row.move._replace(chunk=chunk))
        for combine in (True, False)
        for place, row in enumerate(rows_of(schedule, combine=combine))
        for i, chunk in enumerate(row.chunks)
    ]
    folded = tuple(
        m._replace(start=when[m.chunk, m.src, m.dst, m.combine])
        for *_, m in sorted(numbered, key=lambda entry: entry[:3])
    )
    moves = tuple(images(schedule.demand, folded, symmetry))
    return replace(schedule, moves=moves, folded=folded)
