"""The tables and loops of an emitted file, collective by collective.

Legend: N ranks, K split. A row of MOVES says what is copied: whose it is, which piece,
from whom, to whom; one of SUMS who adds up what of whom. Among some of the ranks, a
member's parts lie at its place (`owner.place`), not at its number.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TypeAlias

from stretto.synth.emit.loops import fetched, loop, only_root, relay_slot, stored
from stretto.synth.emit.tables import (
    OUTPUT,
    Lines,
    RankNames,
    Slots,
    TableRow,
    belongs,
    copies,
    entry_of,
    sums,
    width_of,
)
from stretto.synth.network.symmetry import Symmetry
from stretto.synth.schedules.schedule import TimedSchedule

__all__ = ["BODIES", "Body"]

Table: TypeAlias = tuple[str, str, list[tuple[object, ...]]]
"""Its name, what its columns are, and its rows."""

_WAITING = "Rank, Ranks, Reference, algorithm, reduce"
"""What a file takes from the language whose sums wait in slots."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Body:
    """What differs between emitted files."""

    tables: tuple[Table, ...]
    lines: list[str]
    parameters: str = ""
    imports: str = "Ranks, algorithm"


@dataclass(frozen=True, slots=True, kw_only=True)
class _Copied:
    """How a file speaks of what is copied."""

    whose: str
    """Whose a chunk is, in a legend; and the names of those ranks."""
    owners: tuple[str, ...]
    at: str = ""
    """The line that says where a chunk lies."""
    data: str
    target: str
    plain: tuple[str, ...] = ()
    """The lines when nobody relays, where they are not these."""
    once: bool = False
    """Whether data are taken where they began, unless a relay has them."""
    relays: bool = False
    """Whether rows name relays' slots, be there none."""
    slots: str = "relay's slots there (-1: none)"
    width: int = 1


def _moves(
    schedule: TimedSchedule, symmetry: Symmetry, spoken: _Copied
) -> tuple[Table, list[str]]:
    """Return the table of what is copied, and its loop."""
    lines, slots = Lines(schedule), Slots(symmetry)
    rows = copies(lines, slots)
    named = spoken.relays or slots.count > 0
    entries = []
    for row in rows:
        ((src, held),) = row.terms
        waits = (held, row.slot) if named else ()
        entry = entry_of(row, lines)
        entries.append((*entry, src, row.rank, *row.first, *waits))
    legend = f"{spoken.whose}which {lines.pieces}, from, to{lines.legend}"
    legend += "; by planned start"
    if named:
        legend = f"{spoken.whose}which piece, from, to, {spoken.slots}"
    relay = relay_slot(slots.count, spoken.width)
    if spoken.once:
        taken = [f"data = {spoken.data}"]
        taken += fetched("", relay)[:2] if relay else []
    else:
        taken = fetched(spoken.data, relay)
    body = [spoken.at] * bool(spoken.at) + taken + stored(spoken.target, relay)
    if spoken.plain and not relay:
        body = list(spoken.plain)
    columns = "".join(f"{name}_, " for name in spoken.owners)
    waits_named = ", held, kept" if named else ""
    looped = loop(
        symmetry,
        f"for {columns}{lines.pieces}, src_, dst_{lines.wave}{waits_named} in MOVES:",
        [*spoken.owners, "src", "dst"],
        body,
        waves=lines.waves,
    )
    return ("MOVES", legend, entries), looped


def _all_gather(schedule: TimedSchedule, symmetry: Symmetry) -> Body:
    group = RankNames(schedule.demand)
    at = f"at = owner{group.place} * K + piece"
    spoken = _Copied(
        whose="whose, ",
        owners=("owner",),
        at=at,
        data="src.input[piece] if src == owner else src.output[at]",
        target="dst.output[at]",
        plain=(
            "own = src == owner",
            at,
            "dst.output[at] = src.input[piece] if own else src.output[at]",
        ),
    )
    table, lines = _moves(schedule, symmetry, spoken)
    own = f"    r.output[r{group.place} * K : r{group.place} * K + K] = r.input[:]"
    return Body(tables=(table,), lines=[f"for r in {group.all}:", own, *lines])


def _all_to_all(schedule: TimedSchedule, symmetry: Symmetry) -> Body:
    group = RankNames(schedule.demand)
    p = group.place
    spoken = _Copied(
        whose="whose, for whom, ",
        owners=("owner", "to"),
        data=f"owner.input[to{p} * K + piece]",
        target=f"dst.output[owner{p} * K + piece]",
        once=True,
        relays=True,
    )
    table, lines = _moves(schedule, symmetry, spoken)
    own = f"[r{p} * K : r{p} * K + K]"
    keep = f"    r.output{own} = r.input{own}"
    return Body(tables=(table,), lines=[f"for r in {group.all}:", keep, *lines])


def _rooted(
    schedule: TimedSchedule, symmetry: Symmetry, spoken: _Copied, *own: str
) -> Body:
    """Return what a root begins, or ends with."""
    root = schedule.demand.root
    table, lines = _moves(schedule, symmetry, spoken)
    return Body(
        tables=(table,),
        parameters=f", root: int = {root}",
        lines=[*only_root(root), *own, *lines],
    )


def _broadcast(schedule: TimedSchedule, symmetry: Symmetry) -> Body:
    width = width_of(schedule.demand)
    spoken = _Copied(
        whose="",
        owners=(),
        at=f"low, high = piece * {width}, piece * {width} + {width}",
        data="(src.input if src == root else src.output)[low:high]",
        target="dst.output[low:high]",
        width=width,
    )
    own = "ranks[root].output[:] = ranks[root].input[:]"
    return _rooted(schedule, symmetry, spoken, own)


def _scatter(schedule: TimedSchedule, symmetry: Symmetry) -> Body:
    p = RankNames(schedule.demand).place
    spoken = _Copied(
        whose="for whom, ",
        owners=("owner",),
        data=f"whole[owner{p} * K + piece]",
        target="dst.output[piece]",
        once=True,
        relays=True,
    )
    return _rooted(
        schedule,
        symmetry,
        spoken,
        "top, whole = ranks[root], ranks[root].input",
        f"top.output[:] = whole[top{p} * K : top{p} * K + K]",
    )


def _gather(schedule: TimedSchedule, symmetry: Symmetry) -> Body:
    p = RankNames(schedule.demand).place
    spoken = _Copied(
        whose="whose, ",
        owners=("owner",),
        data="owner.input[piece]",
        target=f"whole[owner{p} * K + piece]",
        once=True,
        relays=True,
    )
    return _rooted(
        schedule,
        symmetry,
        spoken,
        "top, whole = ranks[root], ranks[root].output",
        f"whole[top{p} * K : top{p} * K + K] = top.input[:]",
    )


# Sums.


def _added(
    schedule: TimedSchedule,
    symmetry: Symmetry,
    slots: Slots,
    *,
    target: str,
    parts: str,
    reader: tuple[str, str],
) -> tuple[Table, list[str]]:
    """Return the table of sums that wait in slots, and its loop.

    `target` is where a sum belongs, `parts` what the table says of its terms. `reader`
    names the function that reads a term, and says what it reads where none waits.
    """
    demand, group = schedule.demand, RankNames(schedule.demand)
    lines, final = Lines(schedule, combine=True), belongs(demand)
    name, unsent = reader
    places = OUTPUT if demand.collective == "all_reduce" else -1
    rows = sums(lines, lambda c, r: places if final(c, r) else slots.take(c, r))
    room = f'scratch("sums", {max(1, slots.count)})'
    i = " + i" * bool(lines.waves)
    later = f"s{i} if s >= 0 else -1" if i else "s"
    legend = f"whose, which {lines.pieces}, who adds, {parts}"
    body = [
        "",
        f"def {name}(rank: Rank, at: int, slot: int) -> Reference:",
        "    if slot < 0:",
        f"        return {unsent}",
        f"    return rank.{room}[slot]",
        "",
        *loop(
            symmetry,
            f"for owner_, {lines.pieces}, dst_, parts, slot{lines.wave} in SUMS:",
            ["owner", "dst"],
            [
                f"at = owner{group.place} * K + piece",
                f"others = [(ranks[{_turned(symmetry)}], s) for q, s in parts]",
                f"terms = [{name}(r, at, {later}) for r, s in others]",
                f"total = reduce({group.own('dst')}, terms)",
                "if slot < 0:",
                f"    dst.output[{target}] = total",
                "else:",
                f"    dst.{room}[slot{i}] = total",
            ],
            waves=2 * lines.waves,
        ),
    ]
    return ("SUMS", f"{legend}{lines.legend}", _entries(rows, lines)), body


def _entries(rows: list[TableRow], lines: Lines) -> list[tuple[object, ...]]:
    return [
        (*entry_of(row, lines), row.rank, row.terms, row.slot, *row.first)
        for row in rows
    ]


def _turned(symmetry: Symmetry) -> str:
    return "q" if symmetry.order == 1 else "image(q, turn)"


def _reduce_scatter(schedule: TimedSchedule, symmetry: Symmetry) -> Body:
    table, lines = _added(
        schedule,
        symmetry,
        Slots(symmetry),
        target="piece",
        parts="(from, slot of its sum or -1)..., own slot",
        reader=("held", "rank.input[at]"),
    )
    return Body(tables=(table,), imports=_WAITING, lines=lines)


def _reduce(schedule: TimedSchedule, symmetry: Symmetry) -> Body:
    demand, group = schedule.demand, RankNames(schedule.demand)
    width, final = width_of(demand), belongs(demand)
    slots, lines = Slots(symmetry), Lines(schedule, combine=True)
    rows = sums(lines, lambda c, r: -1 if final(c, r) else slots.take(c, r))
    room = max(1, slots.count) * width
    own = group.own("ranks[dst]")
    slot, kept = ("(s + i)", "(slot + i)") if lines.waves else ("s", "slot")
    legend = (
        f"which {lines.pieces}, who adds, (from, slot of its sum or -1)..., own slot"
        f"{lines.legend}"
    )
    return Body(
        tables=(("SUMS", legend, _entries(rows, lines)),),
        parameters=f", root: int = {demand.root}",
        imports="Ranks, algorithm, reduce",
        lines=[
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


def _all_reduce(schedule: TimedSchedule, symmetry: Symmetry) -> Body:
    """Return the sums, then what spreads them; among some ranks, also by relays."""
    whole = RankNames(schedule.demand).whole
    ready = "src.output[at]"
    at = f"at = owner{RankNames(schedule.demand).place} * K + piece"
    spoken = _Copied(
        whose="whose, ",
        owners=("owner",),
        at=at,
        data=ready,
        target="dst.output[at]",
        plain=(at, f"dst.output[at] = {ready}") if whole else (),
        relays=not whole,
        slots="relay's slots (-1: none)",
    )
    moves, spread = _moves(schedule, symmetry, spoken)
    if not whole:
        table, lines = _added(
            schedule,
            symmetry,
            Slots(symmetry),
            target="at",
            parts="(from, slot)..., own slot; -1: input, -2: output",
            reader=("term", "rank.input[at] if slot == -1 else rank.output[at]"),
        )
        return Body(tables=(table, moves), imports=_WAITING, lines=[*lines, *spread])
    there = Lines(schedule, combine=True)
    entries = [
        (*entry_of(row, there), row.rank, row.terms, *row.first)
        for row in sums(there, lambda chunk, rank: 0)
    ]
    legend = f"whose, which {there.pieces}, who adds, (from, 0: sum, -1: input)"
    added = loop(
        symmetry,
        f"for owner_, {there.pieces}, dst_, parts{there.wave} in SUMS:",
        ["owner", "dst"],
        [
            at,
            f"others = [(ranks[{_turned(symmetry)}], leaf) for q, leaf in parts]",
            "sides = [r.input if leaf else r.output for r, leaf in others]",
            "terms = [side[at] for side in sides]",
            "dst.output[at] = reduce(dst.input[at], terms)",
        ],
        waves=2 * there.waves,
    )
    return Body(
        tables=(("SUMS", f"{legend}{there.legend}", entries), moves),
        imports="Ranks, algorithm, reduce",
        lines=[*added, *spread],
    )


BODIES: Mapping[str, Callable[[TimedSchedule, Symmetry], Body]] = {
    "all_gather": _all_gather,
    "all_reduce": _all_reduce,
    "all_to_all": _all_to_all,
    "broadcast": _broadcast,
    "gather": _gather,
    "reduce": _reduce,
    "reduce_scatter": _reduce_scatter,
    "scatter": _scatter,
}
