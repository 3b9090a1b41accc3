"""A schedule as a plain list of its moves, each with the way that it takes.

Every move is one row and one line of the program, in the order of planned starts, so
that the program keeps the plan: links that serve in its order serve as planned. Sums
are added up as they come.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TypeAlias

from stretto.synth.model import Network
from stretto.synth.rows import only_root
from stretto.synth.schedule import Demand, Move, Schedule

__all__ = ["listed", "ways_of"]

_Row: TypeAlias = tuple[int, ...]
_INPUT, _OUTPUT = -1, -2
"""In the place of a scratch slot."""


class _Places:
    """Where every rank keeps every chunk that it passes on."""

    def __init__(self, schedule: Schedule) -> None:
        self.demand = schedule.demand
        self.members = set(self.demand.network.members)
        self.chunks = list(self.demand.chunks())
        self._slots: dict[tuple[int, int], int] = {}
        self._used: dict[int, int] = {}
        self._begun: set[tuple[int, int]] = set()

    @property
    def room(self) -> int:
        """Return how many slots a rank needs."""
        return max(self._used.values(), default=0)

    def _slot(self, chunk: int, rank: int) -> int:
        key = chunk, rank
        if key not in self._slots:
            self._slots[key] = self._used.get(rank, 0)
            self._used[rank] = self._slots[key] + 1
        return self._slots[key]

    def kept(self, chunk: int, rank: int) -> int:
        """Return where a rank keeps what comes of a chunk."""
        kind, c = self.demand.collective, self.chunks[chunk]
        if kind in ("all_gather", "all_reduce", "broadcast"):
            final = rank in self.members
        elif kind in ("reduce_scatter", "reduce"):
            final = rank == c.origin
        else:
            final = rank in c.wanted
        return _OUTPUT if final else self._slot(chunk, rank)

    def held(self, move: Move) -> int:
        """Return where the source of a move has the chunk."""
        chunk, rank = move.chunk, move.src
        if self.demand.combines:
            return self.kept(chunk, rank) if (chunk, rank) in self._begun else _INPUT
        if rank == self.chunks[chunk].origin:
            return _INPUT
        return self.kept(chunk, rank)

    def begin(self, chunk: int, rank: int) -> bool:
        """Return whether nothing of a chunk has come to a rank before; note it."""
        first = (chunk, rank) not in self._begun
        self._begun.add((chunk, rank))
        return first


def ways_of(network: Network, moves: Sequence[Move]) -> dict[tuple[int, ...], int]:
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


def listed(
    schedule: Schedule, ways: dict[tuple[int, ...], int]
) -> tuple[list[str], list[str], str]:
    """Return the tables, the body and the parameters of a file that lists moves."""
    demand, network = schedule.demand, schedule.demand.network
    places = _Places(schedule)
    rows: list[_Row] = []
    for m in schedule.moves:
        held, kept = places.held(m), places.kept(m.chunk, m.dst)
        row: _Row = (m.chunk, m.src, m.dst, held, kept)
        if demand.combines:
            first = places.begin(m.chunk, m.dst)
            row += (0 if not m.combine else 1 if first else 2,)
        rows.append((*row, ways[m.links]))
    named = [links for links, number in ways.items() if number >= 0]
    legend = "which chunk, from, to, slots there (-1: input, -2: output)"
    if demand.combines:
        legend += ", 1: a sum begins, 2: goes on, 0: no sum"
    table = [" ".join(map(str, row)) for row in rows]
    lines = [f"# {legend}, which way (-1: any)", 'MOVES = """\\', *table, '"""']
    if named:
        lines += [
            "WAYS = (  # the switches on the ways that MOVES name",
            *(f"    {network.switches_on(links)}," for links in named),
            ")",
        ]
    rooted = demand.collective in ("broadcast", "reduce", "gather", "scatter")
    body = [
        *(only_root(demand.root) if rooted else ()),
        *_body(demand, places, bool(named)),
    ]
    return lines, body, f", root: int = {demand.root}" if rooted else ""


def _body(demand: Demand, places: _Places, ways: bool) -> Iterator[str]:
    whole = len(places.members) == demand.network.num_ranks
    place = "" if whole else ".place"
    everybody = "ranks" if whole else "ranks.members"
    source, target = _ends(demand)
    scratch = f'scratch("relay", {max(1, places.room)})'
    yield from _own(demand, everybody, place)
    sums = ", adds" * demand.combines
    yield "for row in MOVES.splitlines():"
    yield f"    chunk, src_, dst_, held, kept{sums}, way = map(int, row.split())"
    yield "    src, dst = ranks[src_], ranks[dst_]"
    fetch = f"{source} if held == {_INPUT} else src.output[{target}]"
    if places.room:
        yield "    if held >= 0:"
        yield f"        data = src.{scratch}[held]"
        yield "    else:"
        yield f"        data = {fetch}"
    else:
        yield f"    data = {fetch}"
    if ways:
        yield "    if way >= 0:"
        yield "        data = data.via(*WAYS[way])"
    if demand.combines:
        yield from _added(demand, places, source, target, scratch, whole)
        return
    if places.room:
        yield "    if kept >= 0:"
        yield f"        dst.{scratch}[kept] = data"
        yield "    else:"
        yield f"        dst.output[{target}] = data"
    else:
        yield f"    dst.output[{target}] = data"


def _own(demand: Demand, everybody: str, place: str) -> Iterator[str]:
    """Yield the lines by which ranks keep what is theirs already."""
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


def _added(
    demand: Demand, places: _Places, source: str, target: str, scratch: str, whole: bool
) -> Iterator[str]:
    """Yield the lines that add what came to what is there."""
    own = source.replace("src.", "dst.")
    low, colon, high = target.partition(" : ")
    at = f"slice({low}, {high})" if colon else target
    if places.room:
        yield f"    there = dst.{scratch} if kept >= 0 else dst.output"
        yield f"    at = kept if kept >= 0 else {at}"
    else:
        yield f"    there, at = dst.output, {at}"
    yield "    if adds == 1:"
    if whole:
        yield f"        there[at] = reduce({own}, data)"
    else:
        yield f"        there[at] = reduce({own}, data) if dst in MEMBERS else data"
    yield "    elif adds:"
    yield "        there[at] = reduce(there[at], data)"
    if demand.collective == "all_reduce":
        yield "    else:"
        yield "        there[at] = data"
