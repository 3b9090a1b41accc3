"""A schedule as rows of tables: who makes what of a chunk, and from whom.

A copy is a sum of one term, to which who gets it adds nothing of its own. What a rank
only passes on waits in its scratch, in a slot.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Hashable, Iterable
from typing import NamedTuple, TypeAlias

from stretto.errors import CallError
from stretto.synth.network.symmetry import Symmetry
from stretto.synth.schedules.repeating import rows_of
from stretto.synth.schedules.schedule import DataChunk, Demand, TimedMove, TimedSchedule

__all__ = [
    "OUTPUT",
    "Lines",
    "RankNames",
    "Slots",
    "TableRow",
    "belongs",
    "copies",
    "entry_of",
    "sums",
    "width_of",
]

OUTPUT = -2
"""In the place of a slot, where -1 is an input: the output holds the data."""

Kept: TypeAlias = Callable[[int, int], int]
Entry: TypeAlias = tuple[object, ...]


class TableRow(NamedTuple):
    """Who gets what: a copy of one term, or a sum of terms and of its own."""

    chunk: int
    """The first, of a row of a loop."""
    rank: int
    terms: tuple[tuple[int, int], ...]
    """From whom, and the slot there; negative: in no slot."""
    slot: int
    """Where it is kept; negative: in no slot."""
    first: tuple[int, ...] = ()
    """Of a loop over waves, the wave of the first chunk."""


def copies(lines: Lines, slots: Slots) -> list[TableRow]:
    """Return what spreads, in the order of its planned starts."""
    final = belongs(lines.demand)
    rows = []
    for m in lines.moves:
        held = slots.get(m.chunk, m.src)
        kept = -1 if final(m.chunk, m.dst) else slots.take(m.chunk, m.dst)
        rows.append(TableRow(m.chunk, m.dst, ((m.src, held),), kept, lines.first(m)))
    return rows


def sums(lines: Lines, kept: Kept) -> list[TableRow]:
    """Return the sums in the order of their table.

    A rank adds when everything has come, just before it sends its sum on. `kept` says
    in which slot the sum of a chunk is kept by a rank.
    """
    into: dict[tuple[int, int], list[TimedMove]] = {}
    order: dict[tuple[int, int], TimedMove] = {}
    combining = lines.ordered()
    origin = {c.number: c.origin for c in lines.demand.chunks()}
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
        terms = tuple(
            (m.src, kept(chunk, m.src) if (chunk, m.src) in into else -1)
            for m in into[chunk, rank]
        )
        slot, *_ = [kept(c, rank) for c in lines.chunks(chunk)]  # a loop's follow it
        first = lines.first(last)
        if rank == origin[chunk]:
            first = tuple(f + lines.waves for f in first)  # when all is on its way
        row = TableRow(chunk, rank, terms, slot, first)
        rows.append((lines.place(last) if lines.waves else 0, row))
    return [row for _, row in sorted(rows, key=lambda entry: entry[0])]


def belongs(demand: Demand) -> Callable[[int, int], bool]:
    """Return what tells whether a chunk belongs into a rank's output."""
    chunks: list[DataChunk] = list(demand.chunks())
    if demand.collective in ("reduce", "reduce_scatter"):
        return lambda chunk, rank: rank == chunks[chunk].origin
    return lambda chunk, rank: rank in chunks[chunk].wanted


def entry_of(row: TableRow, lines: Lines) -> Entry:
    """Return how a table names a row's chunk: by whose it is, and by its piece."""
    demand = lines.demand
    members, k = demand.network.members, demand.split
    if demand.collective in ("broadcast", "reduce"):
        return (lines.piece(row.chunk, len(members) * k),)
    parts: Iterable[int] = (row.chunk // k,)
    if demand.collective == "all_to_all":
        parts = divmod(row.chunk // k, len(members))
    return (*(members[part] for part in parts), lines.piece(row.chunk, k))


class Slots:
    """Scratch slots: counted per orbit, so that no two images meet in one."""

    def __init__(self, symmetry: Symmetry) -> None:
        self._symmetry = symmetry
        self._used: Counter[int] = Counter()
        self._slot: dict[tuple[Hashable, int], int] = {}

    def take(self, chunk: Hashable, rank: int) -> int:
        """Return a slot of the rank for the chunk, or for what else is to wait."""
        if (chunk, rank) not in self._slot:
            orbit = min(g[rank] for g in self._symmetry.nodes)
            self._slot[chunk, rank] = self._used[orbit]
            self._used[orbit] += 1
        return self._slot[chunk, rank]

    def get(self, chunk: int, rank: int) -> int:
        """Return the slot taken, or -1."""
        return self._slot.get((chunk, rank), -1)

    @property
    def count(self) -> int:
        """Return how many chunks of scratch a rank needs."""
        return max(self._used.values(), default=0)


class Lines:
    """The moves that a table names: every one, or of a loop over waves the ways."""

    def __init__(self, schedule: TimedSchedule, *, combine: bool = False) -> None:
        rows = rows_of(schedule, combine=combine)
        self.demand = schedule.demand
        self.waves = max((r.first + len(r.chunks) for r in rows), default=0)
        """How often the loop goes over the table; 0: there is no such loop."""
        self._chunks = {r.move.chunk: r.chunks for r in rows}
        self._first = {r.move: (r.first, place) for place, r in enumerate(rows)}
        single = (m for m in schedule.folded if m.combine == combine)
        self.moves = [r.move for r in rows] if schedule.waves else list(single)

    @property
    def pieces(self) -> str:
        """Return how a loop names the pieces of a row."""
        return "pieces" if self.waves else "piece"

    @property
    def wave(self) -> str:
        """Return how a loop names a row's first wave, which ends it."""
        return ", first" * bool(self.waves)

    @property
    def legend(self) -> str:
        """Return what a table's legend says of the wave."""
        return ", wave of the first" * bool(self.waves)

    def ordered(self) -> list[TimedMove]:
        """Return the moves so that what one needs is before it."""
        return (
            sorted(self.moves, key=self._first.__getitem__)
            if self.waves
            else self.moves
        )

    def chunks(self, chunk: int) -> tuple[int, ...]:
        """Return the chunks of the row that begins with a chunk."""
        return self._chunks.get(chunk, (chunk,))

    def piece(self, chunk: int, split: int) -> int | range | tuple[int, ...]:
        """Return what a row says of its pieces."""
        if not self.waves:
            return chunk % split
        numbers = tuple(c % split for c in self._chunks[chunk])
        step = numbers[1] - numbers[0] if len(numbers) > 1 else 1
        regular = range(numbers[0], numbers[-1] + (1 if step > 0 else -1), step)
        return regular if tuple(regular) == numbers else numbers

    def first(self, move: TimedMove) -> tuple[int, ...]:
        """Return the first wave of a row, which ends it; nothing without a loop."""
        return self._first[move][:1] if self.waves else ()

    def place(self, move: TimedMove) -> int:
        """Return where in a wave a move is."""
        return self._first[move][1]


class RankNames:
    """How a file speaks of the ranks that take part: of all, or of the members."""

    def __init__(self, demand: Demand) -> None:
        network = demand.network
        self.members = network.members
        self.whole = len(network.members) == network.num_ranks
        self.all = "ranks" if self.whole else "ranks.members"
        self.place = "" if self.whole else ".place"
        """What follows a rank where its part of a buffer is meant."""

    def own(self, dst: str) -> str:
        """Return what a rank adds of its own; who only relays has nothing."""
        mine = f"{dst}.input[at]"
        return mine if self.whole else f"[{mine}] if {dst} in MEMBERS else []"


def width_of(demand: Demand) -> int:
    """Return the chunks of one piece of a broadcast or reduce."""
    whole = len(demand.network.members) * demand.split
    if demand.pieces and whole % demand.pieces:
        raise CallError(
            f"{demand.pieces} pieces of {whole} chunks; want a divisor:"
            " choose split so that ranks x split is a multiple"
        )
    return whole // demand.pieces if demand.pieces else 1
