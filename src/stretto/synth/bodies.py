"""The tables and loops of an emitted file for collectives that copy.

Legend: N ranks, K split. A row names the owner of the data and the piece, then who
sends and who receives. What a rank passes on without wanting it waits in scratch. Among
some of the ranks, a member's parts lie at its place (`owner.place`), not its number.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from stretto.synth.rows import (
    Group,
    Lines,
    Rows,
    Slots,
    loop,
    only_root,
    relayed,
    stored,
    width_of,
)
from stretto.synth.schedule import Schedule
from stretto.synth.sums import all_reduce_rows, reduce_rows, reduce_scatter_rows
from stretto.synth.symmetry import Symmetry

__all__ = ["BODIES"]


def _all_gather(schedule: Schedule, symmetry: Symmetry) -> Rows:
    k, group = schedule.demand.split, Group(schedule)
    p, slots = group.place, Slots(symmetry)
    entries, lines = [], Lines(schedule)
    for m in lines.moves:
        held = slots.get(m.chunk, m.src)
        kept = -1 if m.dst in group.members else slots.take(m.chunk, m.dst)
        owner, piece = group.members[m.chunk // k], lines.piece(m.chunk, k)
        entries.append((owner, piece, m.src, m.dst, *lines.first(m), held, kept))
    legend = f"whose, which {lines.pieces}, from, to{lines.legend}; by planned start"
    at = f"at = owner{p} * K + piece"
    fetch = [
        "own = src == owner",
        at,
        "dst.output[at] = src.input[piece] if own else src.output[at]",
    ]
    if slots.count:
        legend = "whose, which piece, from, to, relay's slots there (-1: none)"
        fetch = [
            at,
            *relayed(slots),
            "else:",
            "    data = src.input[piece] if src == owner else src.output[at]",
            *stored(slots, "dst.output[at]"),
        ]
    return Rows(
        tables=(("MOVES", legend, slots.without(entries)),),
        body=[
            f"for r in {group.all}:",
            f"    r.output[r{p} * K : r{p} * K + K] = r.input[:]",
            *loop(
                symmetry,
                f"for owner_, {lines.pieces}, src_, dst_{lines.wave}{slots.names}"
                " in MOVES:",
                ["owner", "src", "dst"],
                fetch,
                waves=lines.waves,
            ),
        ],
    )


def _all_to_all(schedule: Schedule, symmetry: Symmetry) -> Rows:
    k, group = schedule.demand.split, Group(schedule)
    p, n = group.place, len(group.members)
    slots = Slots(symmetry)
    entries = []
    for m in schedule.folded:
        source, target = (group.members[i] for i in divmod(m.chunk // k, n))
        held = -1 if m.src == source else slots.get(m.chunk, m.src)
        kept = -1 if m.dst == target else slots.take(m.chunk, m.dst)
        entries.append((source, target, m.chunk % k, m.src, m.dst, held, kept))
    legend = "whose, for whom, which piece, from, to, relay's slots there (-1: none)"
    own = f"[r{p} * K : r{p} * K + K]"
    return Rows(
        tables=(("MOVES", legend, entries),),
        body=[
            f"for r in {group.all}:",
            f"    r.output{own} = r.input{own}",
            *loop(
                symmetry,
                "for owner_, to_, piece, src_, dst_, held, kept in MOVES:",
                ["owner", "to", "src", "dst"],
                [
                    f"data = owner.input[to{p} * K + piece]",
                    *relayed(slots),
                    *stored(slots, f"dst.output[owner{p} * K + piece]"),
                ],
            ),
        ],
    )


def _broadcast(schedule: Schedule, symmetry: Symmetry) -> Rows:
    demand, group = schedule.demand, Group(schedule)
    width = width_of(schedule)
    slots = Slots(symmetry)
    entries, lines = [], Lines(schedule)
    for m in lines.moves:
        held = slots.get(m.chunk, m.src)
        kept = -1 if m.dst in group.members else slots.take(m.chunk, m.dst)
        piece = lines.piece(m.chunk, len(group.members) * demand.split)
        entries.append((piece, m.src, m.dst, *lines.first(m), held, kept))
    legend = f"which {lines.pieces}, from, to{lines.legend}; by planned start"
    fetch = [
        "data = (src.input if src == root else src.output)[low:high]",
        "dst.output[low:high] = data",
    ]
    if slots.count:
        legend = "which piece, from, to, relay's slots there (-1: none)"
        fetch = [
            *relayed(slots, width),
            "else:",
            f"    {fetch[0]}",
            *stored(slots, "dst.output[low:high]", width),
        ]
    return Rows(
        tables=(("MOVES", legend, slots.without(entries)),),
        parameters=f", root: int = {demand.root}",
        body=[
            *only_root(demand.root),
            "ranks[root].output[:] = ranks[root].input[:]",
            *loop(
                symmetry,
                f"for {lines.pieces}, src_, dst_{lines.wave}{slots.names} in MOVES:",
                ["src", "dst"],
                [f"low, high = piece * {width}, piece * {width} + {width}", *fetch],
                waves=lines.waves,
            ),
        ],
    )


def _scatter(schedule: Schedule, symmetry: Symmetry) -> Rows:
    demand, group = schedule.demand, Group(schedule)
    p, slots = group.place, Slots(symmetry)
    entries = []
    for m in schedule.folded:
        part, piece = divmod(m.chunk, demand.split)
        owner = group.members[part]
        held = -1 if m.src == demand.root else slots.get(m.chunk, m.src)
        kept = -1 if m.dst == owner else slots.take(m.chunk, m.dst)
        entries.append((owner, piece, m.src, m.dst, held, kept))
    legend = "for whom, which piece, from, to, relay's slots there (-1: none)"
    return Rows(
        tables=(("MOVES", legend, entries),),
        parameters=f", root: int = {demand.root}",
        body=[
            *only_root(demand.root),
            "top, whole = ranks[root], ranks[root].input",
            f"top.output[:] = whole[top{p} * K : top{p} * K + K]",
            *loop(
                symmetry,
                "for owner_, piece, src_, dst_, held, kept in MOVES:",
                ["owner", "src", "dst"],
                [
                    f"data = whole[owner{p} * K + piece]",
                    *relayed(slots),
                    *stored(slots, "dst.output[piece]"),
                ],
            ),
        ],
    )


def _gather(schedule: Schedule, symmetry: Symmetry) -> Rows:
    demand, group = schedule.demand, Group(schedule)
    p, slots = group.place, Slots(symmetry)
    entries = []
    for m in schedule.folded:
        part, piece = divmod(m.chunk, demand.split)
        owner = group.members[part]
        held = -1 if m.src == owner else slots.get(m.chunk, m.src)
        kept = -1 if m.dst == demand.root else slots.take(m.chunk, m.dst)
        entries.append((owner, piece, m.src, m.dst, held, kept))
    legend = "whose, which piece, from, to, relay's slots there (-1: none)"
    return Rows(
        tables=(("MOVES", legend, entries),),
        parameters=f", root: int = {demand.root}",
        body=[
            *only_root(demand.root),
            "top, whole = ranks[root], ranks[root].output",
            f"whole[top{p} * K : top{p} * K + K] = top.input[:]",
            *loop(
                symmetry,
                "for owner_, piece, src_, dst_, held, kept in MOVES:",
                ["owner", "src", "dst"],
                [
                    "data = owner.input[piece]",
                    *relayed(slots),
                    *stored(slots, f"whole[owner{p} * K + piece]"),
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
