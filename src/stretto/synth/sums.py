"""The tables and loops of an emitted file for collectives that combine.

A row names who adds up what: the terms in order, each a rank's input or its own sum.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

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
from stretto.synth.schedule import Move, Schedule
from stretto.synth.symmetry import Symmetry

__all__ = ["all_reduce_rows", "reduce_rows", "reduce_scatter_rows"]

SUMS = "Ranks, algorithm, reduce"
SUMS_IN_SCRATCH = "Rank, Ranks, Reference, algorithm, reduce"
"""What a file takes from the language."""


class _Sum(NamedTuple):
    """Who adds up what."""

    chunk: int
    """The first of a row's."""
    rank: int
    parts: tuple[tuple[int, int], ...]
    """From whom, and the slot of a sum or that it is a leaf."""
    own: int
    """The slot of the sum."""
    first: tuple[int, ...]
    """Of a loop over waves, the wave of the first chunk."""


def _sums(schedule: Schedule, lines: Lines, slots: Slots | None) -> list[_Sum]:
    """Return the sums in the order of their table.

    A rank adds when everything has come, just before it sends its sum on.
    """
    into: dict[tuple[int, int], list[Move]] = {}
    order: dict[tuple[int, int], Move] = {}
    combining = lines.ordered()
    origin = _owners(schedule)
    for m in combining:
        into.setdefault((m.chunk, m.dst), []).append(m)
    for m in combining:
        if (m.chunk, m.src) in into:
            order[m.chunk, m.src] = m
    for m in combining:
        if m.dst == origin[m.chunk]:
            order.pop((m.chunk, m.dst), None)
            order[m.chunk, m.dst] = m
    rows = []
    for (chunk, rank), last in order.items():
        parts = []
        for m in into[chunk, rank]:
            leaf = (chunk, m.src) not in into
            slot = -1 if leaf else slots.get(chunk, m.src) if slots else 0
            parts.append((m.src, slot))
        own, first = -1, lines.first(last)
        if rank == origin[chunk]:
            first = tuple(f + lines.waves for f in first)  # when all is on its way
        else:
            taken = [slots.take(c, rank) for c in lines.chunks(chunk)] if slots else [0]
            own = taken[0]  # the others of a loop follow
        row = _Sum(chunk, rank, tuple(parts), own, first)
        rows.append((lines.place(last) if lines.waves else 0, row))
    return [row for _, row in sorted(rows, key=lambda entry: entry[0])]


def _owners(schedule: Schedule) -> Mapping[int, int]:
    return {c.number: c.origin for c in schedule.demand.chunks()}


def reduce_scatter_rows(schedule: Schedule, symmetry: Symmetry) -> Rows:
    """Return the table and the loop of reduce_scatter."""
    k, group = schedule.demand.split, Group(schedule)
    slots, lines = Slots(symmetry), Lines(schedule, combine=True)
    entries = [
        (group.members[c // k], lines.piece(c, k), rank, parts, own, *first)
        for c, rank, parts, own, first in _sums(schedule, lines, slots)
    ]
    room = max(1, slots.count)
    i = " + i" * bool(lines.waves)
    legend = (
        f"whose, which {lines.pieces}, who adds, (from, slot of its sum or -1)...,"
        f" own slot{lines.legend}"
    )
    return Rows(
        tables=(("SUMS", legend, entries),),
        imports=SUMS_IN_SCRATCH,
        body=[
            "",
            "def held(rank: Rank, at: int, slot: int) -> Reference:",
            "    if slot < 0:",
            "        return rank.input[at]",
            f'    return rank.scratch("sums", {room})[slot]',
            "",
            *loop(
                symmetry,
                f"for owner_, {lines.pieces}, dst_, parts, slot{lines.wave} in SUMS:",
                ["owner", "dst"],
                [
                    f"at = owner{group.place} * K + piece",
                    f"others = [(ranks[{_turned(symmetry)}], s) for q, s in parts]",
                    f"terms = [held(r, at, {_later('s', i)}) for r, s in others]",
                    f"total = reduce({group.own('dst')}, terms)",
                    "if slot < 0:",
                    "    dst.output[piece] = total",
                    "else:",
                    f'    dst.scratch("sums", {room})[slot{i}] = total',
                ],
                waves=2 * lines.waves,
            ),
        ],
    )


def _later(slot: str, i: str) -> str:
    """Return where the sum of a row's next chunk is, if its slot is one."""
    return f"{slot}{i} if {slot} >= 0 else -1" if i else slot


def _turned(symmetry: Symmetry) -> str:
    return "q" if symmetry.order == 1 else "image(q, turn)"


def reduce_rows(schedule: Schedule, symmetry: Symmetry) -> Rows:
    """Return the table and the loop of reduce."""
    demand, group = schedule.demand, Group(schedule)
    width = width_of(schedule)
    slots, lines = Slots(symmetry), Lines(schedule, combine=True)
    count = len(group.members) * demand.split
    entries = [
        (lines.piece(c, count), rank, parts, slot, *first)
        for c, rank, parts, slot, first in _sums(schedule, lines, slots)
    ]
    room = max(1, slots.count) * width
    own = group.own("ranks[dst]")
    i = " + i" * bool(lines.waves)
    legend = (
        f"which {lines.pieces}, who adds, (from, slot of its sum or -1)..., own slot"
        f"{lines.legend}"
    )
    slot = f"(s{i})" if i else "s"
    kept = f"(slot{i})" if i else "slot"
    return Rows(
        tables=(("SUMS", legend, entries),),
        parameters=f", root: int = {demand.root}",
        imports=SUMS,
        body=[
            *only_root(demand.root),
            f"W = {width}",
            *loop(
                symmetry,
                f"for {lines.pieces}, dst, parts, slot{lines.wave} in SUMS:",
                [],
                [
                    "at = slice(piece * W, piece * W + W)",
                    f"terms = {f'[{own}]' if group.whole else own}",
                    "for q, s in parts:",
                    f'    sums = ranks[q].scratch("sums", {room}) if s >= 0 else None',
                    f"    ready = slice({slot} * W, {slot} * W + W)",
                    "    terms.append(sums[ready] if s >= 0 else ranks[q].input[at])",
                    "if slot < 0:",
                    "    ranks[dst].output[at] = reduce(terms)",
                    "else:",
                    f'    sums = ranks[dst].scratch("sums", {room})',
                    f"    sums[{kept} * W : {kept} * W + W] = reduce(terms)",
                ],
                waves=2 * lines.waves,
            ),
        ],
    )


def all_reduce_rows(schedule: Schedule, symmetry: Symmetry) -> Rows:
    """Return the tables and the loops of all_reduce."""
    if not Group(schedule).whole:
        return _all_reduce_by_relays(schedule, symmetry)
    k = schedule.demand.split
    there, back = Lines(schedule, combine=True), Lines(schedule)
    sums = [
        (c // k, there.piece(c, k), rank, parts, *first)
        for c, rank, parts, _, first in _sums(schedule, there, None)
    ]
    moves = [
        (m.chunk // k, back.piece(m.chunk, k), m.src, m.dst, *back.first(m))
        for m in back.moves
    ]
    q = _turned(symmetry)
    adds = f"whose, which {there.pieces}, who adds, (from, 0: sum, -1: input)"
    goes = f"whose, which {back.pieces}, from, to"
    return Rows(
        tables=(
            ("SUMS", f"{adds}{there.legend}", sums),
            ("MOVES", f"{goes}{back.legend}; by planned start", moves),
        ),
        imports=SUMS,
        body=[
            *loop(
                symmetry,
                f"for owner_, {there.pieces}, dst_, parts{there.wave} in SUMS:",
                ["owner", "dst"],
                [
                    "at = owner * K + piece",
                    f"others = [(ranks[{q}], leaf) for q, leaf in parts]",
                    "sides = [r.input if leaf else r.output for r, leaf in others]",
                    "terms = [side[at] for side in sides]",
                    "dst.output[at] = reduce(dst.input[at], terms)",
                ],
                waves=2 * there.waves,
            ),
            *loop(
                symmetry,
                f"for owner_, {back.pieces}, src_, dst_{back.wave} in MOVES:",
                ["owner", "src", "dst"],
                [
                    "at = owner * K + piece",
                    "dst.output[at] = src.output[at]",
                ],
                waves=back.waves,
            ),
        ],
    )


_OUTPUT = -2
"""In the place of a slot: a member's own output holds the sum."""


def _all_reduce_by_relays(schedule: Schedule, symmetry: Symmetry) -> Rows:
    """Return those of an all_reduce among some ranks: relays add up in scratch."""
    adders, slots = Slots(symmetry), Slots(symmetry)
    sums = _sums_by_relays(schedule, symmetry, adders)
    moves = _spread_by_relays(schedule, slots)
    room = f'scratch("sums", {max(1, adders.count)})'
    ready = "data = src.output[at]"
    legend = "whose, which piece, who adds, (from, slot)..., own slot"
    where = "-1: input, -2: output"
    return Rows(
        tables=(
            ("SUMS", f"{legend}; {where}", sums),
            ("MOVES", "whose, which piece, from, to, relay's slots (-1: none)", moves),
        ),
        imports=SUMS_IN_SCRATCH,
        body=[
            "",
            "def term(rank: Rank, at: int, slot: int) -> Reference:",
            "    if slot < 0:",
            "        return rank.input[at] if slot == -1 else rank.output[at]",
            f"    return rank.{room}[slot]",
            "",
            *loop(
                symmetry,
                "for owner_, piece, dst_, parts, slot in SUMS:",
                ["owner", "dst"],
                [
                    "at = owner.place * K + piece",
                    f"others = [(ranks[{_turned(symmetry)}], s) for q, s in parts]",
                    "terms = [term(r, at, s) for r, s in others]",
                    f"total = reduce({Group(schedule).own('dst')}, terms)",
                    "if slot < 0:",
                    "    dst.output[at] = total",
                    "else:",
                    f"    dst.{room}[slot] = total",
                ],
            ),
            *loop(
                symmetry,
                "for owner_, piece, src_, dst_, held, kept in MOVES:",
                ["owner", "src", "dst"],
                [
                    "at = owner.place * K + piece",
                    *relayed(slots),
                    *(("else:", f"    {ready}") if slots.count else (ready,)),
                    *stored(slots, "dst.output[at]"),
                ],
            ),
        ],
    )


def _sums_by_relays(
    schedule: Schedule, symmetry: Symmetry, slots: Slots
) -> list[tuple[Any, ...]]:
    k, group = schedule.demand.split, Group(schedule)
    rows = []
    lines = Lines(schedule, combine=True)
    for chunk, rank, parts, _, _ in _sums(schedule, lines, None):
        kept = _OUTPUT if rank in group.members else slots.take(chunk, rank)
        terms = tuple(
            (q, leaf or (_OUTPUT if q in group.members else slots.get(chunk, q)))
            for q, leaf in parts
        )
        rows.append((group.members[chunk // k], chunk % k, rank, terms, kept))
    return rows


def _spread_by_relays(schedule: Schedule, slots: Slots) -> list[tuple[Any, ...]]:
    k, group = schedule.demand.split, Group(schedule)
    rows = []
    for m in schedule.folded:
        if not m.combine:
            held = slots.get(m.chunk, m.src)
            kept = -1 if m.dst in group.members else slots.take(m.chunk, m.dst)
            owner, piece = group.members[m.chunk // k], m.chunk % k
            rows.append((owner, piece, m.src, m.dst, held, kept))
    return rows
