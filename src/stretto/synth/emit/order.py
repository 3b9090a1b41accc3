"""In what order loops write moves, and whether links that serve in it keep the plan.

A loop writes a sum where it is sent on, so its terms are written later than they were
planned, and the images of a row one after the other. Links serve moves as they are
written: then something else may come first.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import replace
from fractions import Fraction

from stretto.synth.emit.tables import Lines, sums
from stretto.synth.network.symmetry import Symmetry
from stretto.synth.schedules.replay import replay
from stretto.synth.schedules.schedule import TimedMove, TimedSchedule
from stretto.synth.schedules.unfold import images

__all__ = ["loops_us", "sends_sums_on"]


def loops_us(schedule: TimedSchedule, symmetry: Symmetry) -> Fraction:
    """Return what a schedule takes when loops over rows write it."""
    if not (schedule.waves or schedule.demand.combines):
        return replay(schedule).us  # copies without waves keep their order
    order = tuple(_written(schedule, symmetry))
    assert len(order) == len(schedule.moves), "loops write every move once"
    return replay(replace(schedule, moves=order)).us


def sends_sums_on(schedule: TimedSchedule) -> bool:
    """Return whether a rank sends a sum that is not yet whole."""
    adds = {(m.chunk, m.dst) for m in schedule.folded if m.combine}
    return any((m.chunk, m.src) in adds for m in schedule.folded if m.combine)


def _written(schedule: TimedSchedule, symmetry: Symmetry) -> Iterator[TimedMove]:
    """Yield the moves as the loops over sums, and then over copies, write them."""
    adds, copies = Lines(schedule, combine=True), Lines(schedule)
    into: dict[tuple[int, int], list[TimedMove]] = defaultdict(list)
    for move in adds.moves:
        into[move.chunk, move.dst].append(move)
    rows = sums(adds, lambda chunk, rank: 0)
    summed = [(row.first, into[row.chunk, row.rank]) for row in rows]
    copied = [(copies.first(move), [move]) for move in copies.moves]
    for lines, entries, waves in (
        (adds, summed, 2 * adds.waves), (copies, copied, copies.waves)
    ):  # fmt: skip
        for moves in _in_turn(lines, entries, waves):
            terms = [images(schedule.demand, [m], symmetry) for m in moves]
            for image in zip(*terms, strict=True):
                yield from image


def _in_turn(
    lines: Lines, entries: list[tuple[tuple[int, ...], list[TimedMove]]], waves: int
) -> Iterator[list[TimedMove]]:
    """Yield the moves of every row, in every wave that has a chunk for it."""
    if not waves:
        yield from (moves for _, moves in entries)
    for wave in range(waves):
        for (first,), moves in entries:
            chunks = lines.chunks(moves[0].chunk)
            if 0 <= wave - first < len(chunks):
                yield [m._replace(chunk=chunks[wave - first]) for m in moves]
