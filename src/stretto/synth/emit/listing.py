"""A schedule as a plain list of its moves, each with the way that it takes.

Every move is one row and one line of the program, in the order of planned starts, so
that the program keeps the plan: links that serve in its order serve as planned. Sums
are added up as they come.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from stretto.synth.emit.collectives import Body
from stretto.synth.emit.loops import fetched, indented, only_root, stored
from stretto.synth.emit.tables import OUTPUT, RankNames, Slots, TableRow, belongs
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
    begun, slots = set[tuple[int, int]](), Slots(trivial(network))
    entries: list[tuple[object, ...]] = []
    for row, move in zip(_rows(schedule, slots), schedule.moves, strict=True):
        ((src, held),) = row.terms
        adds = (0,) if not move.combine else (2 if row[:2] in begun else 1,)
        begun.add(row[:2])
        entry = (row.chunk, src, row.rank, held, row.slot)
        entries.append((*entry, *adds[: demand.combines], ways[move.links]))
    legend = "which chunk, from, to, slots there (-1: input, -2: output)"
    if demand.combines:
        legend += ", 1: a sum begins, 2: goes on, 0: no sum"
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
            *_loop(demand, slots.count, ways=bool(named)),
        ],
    )


def _rows(schedule: TimedSchedule, slots: Slots) -> Iterator[TableRow]:
    """Yield every move as a row of one term, with where it is taken and kept."""
    demand = schedule.demand
    final, chunks = belongs(demand), list(demand.chunks())
    begun: set[tuple[int, int]] = set()

    def place(chunk: int, rank: int) -> int:
        return OUTPUT if final(chunk, rank) else slots.take(chunk, rank)

    for m in schedule.moves:
        untouched = (m.chunk, m.src) not in begun
        if not demand.combines:
            untouched = m.src == chunks[m.chunk].origin
        held = -1 if untouched else place(m.chunk, m.src)
        begun.add((m.chunk, m.dst))
        yield TableRow(m.chunk, m.dst, ((m.src, held),), place(m.chunk, m.dst))


def _loop(demand: Demand, room: int, *, ways: bool) -> Iterator[str]:
    """Yield the loop over the moves."""
    source, target = _ends(demand)
    relay = f'scratch("relay", {max(1, room)})'
    slot = f"{relay}[held]" if room else ""
    adds = ", adds" * demand.combines
    yield f"for chunk, src_, dst_, held, kept{adds}, way in MOVES:"
    lines = ["src, dst = ranks[src_], ranks[dst_]"]
    lines += fetched(f"{source} if held == -1 else src.output[{target}]", slot)
    if ways:
        lines += ["if way >= 0:", "    data = data.via(*WAYS[way])"]
    if demand.combines:
        lines += _added(demand, source, target, relay if room else "")
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
            if demand.pieces and demand.pieces != n * k:
                w = n * k // demand.pieces
                at = f"chunk * {w} : chunk * {w} + {w}"
                return f"src.input[{at}]", at
            return "src.input[chunk]", "chunk"
        case "reduce_scatter":
            return "src.input[chunk]", "chunk % K"
        case _:
            return "src.input[chunk]", "chunk"


def _added(demand: Demand, source: str, target: str, relay: str) -> Iterator[str]:
    """Yield the lines that add what came to what is there."""
    own = source.replace("src.", "dst.")
    low, colon, high = target.partition(" : ")
    at = f"slice({low}, {high})" if colon else target
    if relay:
        yield f"there = dst.{relay} if kept >= 0 else dst.output"
        yield f"at = kept if kept >= 0 else {at}"
    else:
        yield f"there, at = dst.output, {at}"
    only_members = "" if RankNames(demand).whole else " if dst in MEMBERS else data"
    yield "if adds == 1:"
    yield f"    there[at] = reduce({own}, data){only_members}"
    yield "elif adds:"
    yield "    there[at] = reduce(there[at], data)"
    if demand.collective == "all_reduce":
        yield "else:"
        yield "    there[at] = data"
