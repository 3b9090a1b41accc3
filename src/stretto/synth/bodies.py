"""The tables and loops of an emitted file for collectives that copy.

Legend: N ranks, K split. A row names the owner of the data and the piece, then who
sends and who receives. What a rank passes on without wanting it waits in scratch.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from stretto.synth.rows import Rows, Slots, loop, only_root, width_of
from stretto.synth.schedule import Schedule
from stretto.synth.sums import all_reduce_rows, reduce_rows, reduce_scatter_rows
from stretto.synth.symmetry import Symmetry

__all__ = ["BODIES"]


def _all_gather(schedule: Schedule, symmetry: Symmetry) -> Rows:
    k = schedule.demand.split
    entries = [(m.chunk // k, m.chunk % k, m.src, m.dst) for m in schedule.folded]
    return Rows(
        tables=(("MOVES", "whose, which piece, from, to; by planned start", entries),),
        body=[
            "for r in ranks:",
            "    r.output[r * K : r * K + K] = r.input[:]",
            *loop(
                symmetry,
                "for owner_, piece, src_, dst_ in MOVES:",
                ["owner", "src", "dst"],
                [
                    "own = src == owner",
                    "at = owner * K + piece",
                    "dst.output[at] = src.input[piece] if own else src.output[at]",
                ],
            ),
        ],
    )


def _all_to_all(schedule: Schedule, symmetry: Symmetry) -> Rows:
    k, n = schedule.demand.split, schedule.demand.network.num_ranks
    slots = Slots(symmetry)
    entries = []
    for m in schedule.folded:
        (source, target), piece = divmod(m.chunk // k, n), m.chunk % k
        held = -1 if m.src == source else slots.get(m.chunk, m.src)
        kept = -1 if m.dst == target else slots.take(m.chunk, m.dst)
        entries.append((source, target, piece, m.src, m.dst, held, kept))
    legend = "whose, for whom, which piece, from, to, relay's slots there (-1: none)"
    return Rows(
        tables=(("MOVES", legend, entries),),
        body=[
            "for r in ranks:",
            "    r.output[r * K : r * K + K] = r.input[r * K : r * K + K]",
            *loop(
                symmetry,
                "for owner_, to_, piece, src_, dst_, held, kept in MOVES:",
                ["owner", "to", "src", "dst"],
                [
                    "data = src.input[to * K + piece]",
                    *_relayed(slots, "data = {}[held]"),
                    *_stored(slots, "dst.output[owner * K + piece]"),
                ],
            ),
        ],
    )


def _relayed(slots: Slots, take: str) -> list[str]:
    if not slots.count:
        return []
    room = f'src.scratch("relay", {slots.count})'
    return ["if held >= 0:", f"    {take.format(room)}"]


def _stored(slots: Slots, target: str) -> list[str]:
    if not slots.count:
        return [f"{target} = data"]
    return [
        "if kept >= 0:",
        f'    dst.scratch("relay", {slots.count})[kept] = data',
        "else:",
        f"    {target} = data",
    ]


def _broadcast(schedule: Schedule, symmetry: Symmetry) -> Rows:
    demand = schedule.demand
    width = width_of(schedule)
    entries = [(m.chunk, m.src, m.dst) for m in schedule.folded]
    return Rows(
        tables=(("MOVES", "which piece, from, to; by planned start", entries),),
        parameters=f", root: int = {demand.root}",
        body=[
            *only_root(demand.root),
            "ranks[root].output[:] = ranks[root].input[:]",
            "for piece, src, dst in MOVES:",
            f"    low, high = piece * {width}, piece * {width} + {width}",
            "    source = ranks[src].input if src == root else ranks[src].output",
            "    ranks[dst].output[low:high] = source[low:high]",
        ],
    )


def _scatter(schedule: Schedule, symmetry: Symmetry) -> Rows:
    demand = schedule.demand
    slots = Slots(symmetry)
    entries = []
    for m in schedule.folded:
        owner, piece = divmod(m.chunk, demand.split)
        held = -1 if m.src == demand.root else slots.get(m.chunk, m.src)
        kept = -1 if m.dst == owner else slots.take(m.chunk, m.dst)
        entries.append((owner, piece, m.src, m.dst, held, kept))
    legend = "for whom, which piece, from, to, relay's slots there (-1: none)"
    return Rows(
        tables=(("MOVES", legend, entries),),
        parameters=f", root: int = {demand.root}",
        body=[
            *only_root(demand.root),
            "whole = ranks[root].input",
            "ranks[root].output[:] = whole[root * K : root * K + K]",
            *loop(
                symmetry,
                "for owner, piece, src_, dst_, held, kept in MOVES:",
                ["src", "dst"],
                [
                    "data = whole[owner * K + piece]",
                    *_relayed(slots, "data = {}[held]"),
                    *_stored(slots, "dst.output[piece]"),
                ],
            ),
        ],
    )


def _gather(schedule: Schedule, symmetry: Symmetry) -> Rows:
    demand = schedule.demand
    slots = Slots(symmetry)
    entries = []
    for m in schedule.folded:
        owner, piece = divmod(m.chunk, demand.split)
        held = -1 if m.src == owner else slots.get(m.chunk, m.src)
        kept = -1 if m.dst == demand.root else slots.take(m.chunk, m.dst)
        entries.append((owner, piece, m.src, m.dst, held, kept))
    legend = "whose, which piece, from, to, relay's slots there (-1: none)"
    return Rows(
        tables=(("MOVES", legend, entries),),
        parameters=f", root: int = {demand.root}",
        body=[
            *only_root(demand.root),
            "whole = ranks[root].output",
            "whole[root * K : root * K + K] = ranks[root].input[:]",
            *loop(
                symmetry,
                "for owner, piece, src_, dst_, held, kept in MOVES:",
                ["src", "dst"],
                [
                    "data = ranks[owner].input[piece]",
                    *_relayed(slots, "data = {}[held]"),
                    *_stored(slots, "whole[owner * K + piece]"),
                ],
            ),
        ],
    )


BODIES: Mapping[str, Callable[[Schedule, Symmetry], Rows]] = {
    "all_gather": _all_gather,
    "all_reduce": all_reduce_rows,
    "all_to_all": _all_to_all,
    "broadcast": _broadcast,
    "gather": _gather,
    "reduce": reduce_rows,
    "reduce_scatter": reduce_scatter_rows,
    "scatter": _scatter,
}
