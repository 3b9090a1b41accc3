"""A schedule as a plain list of its moves, each with the way that it takes.

Every move is one row and one line of the program, in the order of planned starts, so
that the program keeps the plan: links that serve in its order serve as planned. Sums
are added up as they come.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from typing import TypeAlias

from stretto.synth.emit.collectives import Body
from stretto.synth.emit.loops import (
    fetched,
    indented,
    only_root,
    relay_slot,
    stored,
)
from stretto.synth.emit.tables import (
    OUTPUT,
    RankNames,
    Slots,
    TableRow,
    belongs,
    width_of,
)
from stretto.synth.network.model import Network
from stretto.synth.network.symmetry import trivial
from stretto.synth.schedules.schedule import Demand, TimedMove, TimedSchedule

__all__ = ["listed", "ways_of"]


def ways_of(network: Network, moves: Sequence[TimedMove]) -> dict[tuple[int, ...], int]:
    """Return numbers of the ways that are not the machine's own; -1 is its own."""
    found: dict[tuple[int, ...], int] = {}
    count = 0
    for m in moves:
        if m.links not in found:
            if network.is_natural(m.src, m.dst, m.links):
                found[m.links] = -1
            else:
                found[m.links], count = count, count + 1
    return found


def listed(schedule: TimedSchedule, ways: Mapping[tuple[int, ...], int]) -> Body:
    """Return the tables and the lines of a file that lists moves."""
    demand, network = schedule.demand, schedule.demand.network
    slots = Slots(trivial(network))
    entries: list[tuple[object, ...]] = []
    meets = False
    for row, adds, links in _rows(schedule, slots):
        ((src, held),) = row.terms
        entry = (row.chunk, src, row.rank, held, row.slot)
        way = ways[links] if links else -1
        meets = meets or adds == 3
        entries.append((*entry, *(adds,)[: demand.combines], way))
    legend = "which chunk, from, to, slots there (-1: input, -2: output)"
    if demand.combines:
        apart = ", 3: of what waits apart" * meets
        legend += f", 1: a sum begins, 2: goes on{apart}, 0: no sum"
    tables = [("MOVES", f"{legend}, which way (-1: any)", entries)]
    if named := [links for links, number in ways.items() if number >= 0]:
        switches: list[tuple[object, ...]] = [network.switches_on(x) for x in named]
        tables.append(("WAYS", "the switches on the ways that MOVES name", switches))
    return Body(
        tables=tuple(tables),
        imports=f"Ranks, algorithm{', reduce' * demand.combines}",
        parameters=f", root: int = {demand.root}" if demand.rooted else "",
        lines=[
            *(only_root(demand.root) if demand.rooted else ()),
            *_own(demand, RankNames(demand)),
            *_loop(demand, slots.count, ways=bool(named), meets=meets),
        ],
    )


_Links: TypeAlias = tuple[int, ...]
_Entry: TypeAlias = tuple[TableRow, int, _Links]
"""A row of one term, what it adds, and its links; none where nothing is sent."""


def _rows(schedule: TimedSchedule, slots: Slots) -> Iterator[_Entry]:
    """Yield every move, with where it is taken and kept.

    Who meets another keeps what it added up apart, and adds what it gets there when
    nothing else will come.
    """
    demand, meetings = schedule.demand, schedule.meetings()
    final, chunks = belongs(demand), list(demand.chunks())
    begun, whole = set[tuple[int, int]](), set[tuple[int, int]]()
    meets = {(chunk, rank) for chunk, _, rank in meetings}
    adding = [(m.chunk, m.src, m.dst) for m in schedule.moves if m.combine]
    left = Counter((c, v) for c, u, v in adding if (c, u, v) not in meetings)
    waiting: dict[tuple[int, int], list[int]] = defaultdict(list)

    def place(chunk: int, rank: int, *, apart: bool = False) -> int:
        if apart:
            return slots.take((chunk, rank), rank)
        return OUTPUT if final(chunk, rank) else slots.take(chunk, rank)

    def ended(chunk: int, src: int, rank: int, held: int, links: _Links) -> _Entry:
        here, kept, adds = (chunk, rank), OUTPUT, 2
        if here not in whole and here in begun:
            kept, adds = place(chunk, rank, apart=True), 3
        elif here not in whole:
            adds = 1
        whole.add(here)
        return TableRow(chunk, rank, ((src, held),), kept), adds, links

    for m in schedule.moves:
        here, there = (m.chunk, m.dst), (m.chunk, m.src)
        sent = (m.chunk, m.src, m.dst)
        untouched = there not in begun and there not in whole
        if not demand.combines:
            untouched = m.src == chunks[m.chunk].origin
        elif m.combine and there in meets:
            untouched = there not in begun
        apart = m.combine and there in meets
        held = -1 if untouched else place(m.chunk, m.src, apart=apart)
        if sent in meetings and left[here]:
            slot = slots.take(sent, m.dst)
            waiting[here].append(slot)
            yield TableRow(m.chunk, m.dst, ((m.src, held),), slot), 0, m.links
        elif sent in meetings:
            yield ended(m.chunk, m.src, m.dst, held, m.links)
        else:
            kept = place(m.chunk, m.dst, apart=m.combine and here in meets)
            adds = (2 if here in begun else 1) * m.combine
            yield TableRow(m.chunk, m.dst, ((m.src, held),), kept), adds, m.links
            begun.add(here)
            left[here] -= m.combine
            if not left[here]:
                for slot in waiting.pop(here, ()):
                    yield ended(m.chunk, m.dst, m.dst, slot, ())


def _loop(demand: Demand, room: int, *, ways: bool, meets: bool) -> Iterator[str]:
    """Yield the loop over the moves."""
    source, target = _ends(demand)
    width = width_of(demand)
    slot = relay_slot(room, width)
    adds = ", adds" * demand.combines
    yield f"for chunk, src_, dst_, held, kept{adds}, way in MOVES:"
    lines = ["src, dst = ranks[src_], ranks[dst_]"]
    lines += fetched(f"{source} if held == -1 else src.output[{target}]", slot)
    if ways:
        lines += ["if way >= 0:", "    data = data.via(*WAYS[way])"]
    if demand.combines:
        lines += _added(demand, source, target, slot, width, meets=meets)
    else:
        lines += stored(f"dst.output[{target}]", slot)
    yield from indented(lines)


def _own(demand: Demand, group: RankNames) -> Iterator[str]:
    """Yield the lines by which ranks keep what is theirs already."""
    place, everybody = group.place, group.all
    part = f"r{place} * K : r{place} * K + K"
    match demand.collective:
        case "all_gather":
            yield f"for r in {everybody}:"
            yield f"    r.output[{part}] = r.input[:]"
        case "all_to_all":
            yield f"for r in {everybody}:"
            yield f"    r.output[{part}] = r.input[{part}]"
        case "broadcast":
            yield "ranks[root].output[:] = ranks[root].input[:]"
        case "scatter":
            mine = f"ranks[root]{place} * K : ranks[root]{place} * K + K"
            yield f"ranks[root].output[:] = ranks[root].input[{mine}]"
        case "gather":
            mine = f"ranks[root]{place} * K : ranks[root]{place} * K + K"
            yield f"ranks[root].output[{mine}] = ranks[root].input[:]"
        case _:
            pass


def _ends(demand: Demand) -> tuple[str, str]:
    """Return where a chunk lies in its first input, and in an output."""
    n = len(demand.network.members)
    k = demand.split
    match demand.collective:
        case "all_gather" | "gather":
            return "src.input[chunk % K]", "chunk"
        case "all_to_all":
            many = n * k
            return f"src.input[chunk % {many}]", f"chunk // {many} * K + chunk % K"
        case "scatter":
            return "src.input[chunk]", "chunk % K"
        case "broadcast" | "reduce":
            if (w := width_of(demand)) > 1:
                at = f"chunk * {w} : chunk * {w} + {w}"
                return f"src.input[{at}]", at
            return "src.input[chunk]", "chunk"
        case "reduce_scatter":
            return "src.input[chunk]", "chunk % K"
        case _:
            return "src.input[chunk]", "chunk"


def _added(
    demand: Demand, source: str, target: str, slot: str, width: int, *, meets: bool
) -> Iterator[str]:
    """Yield the lines that add what came to what is there."""
    own = source.replace("src.", "dst.")
    low, colon, high = target.partition(" : ")
    at = f"slice({low}, {high})" if colon else target
    if slot:
        scratch = slot.partition("[")[0]
        kept = "kept" if width == 1 else f"slice(kept * {width}, (kept + 1) * {width})"
        yield f"there = dst.{scratch} if kept >= 0 else dst.output"
        yield f"at = {kept} if kept >= 0 else {at}"
    else:
        yield f"there, at = dst.output, {at}"
    only_members = "" if RankNames(demand).whole else " if dst in MEMBERS else data"
    yield "if adds == 1:"
    yield f"    there[at] = reduce({own}, data){only_members}"
    if meets:
        yield "elif adds == 3:"
        yield f"    dst.output[{target}] = reduce(there[at], data)"
    yield "elif adds:"
    yield "    there[at] = reduce(there[at], data)"
    if demand.collective == "all_reduce":
        yield "else:"
        yield "    there[at] = data"
