"""What emitted files have in common: tables, loops over images, scratch slots."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import Any

from stretto.errors import CallError
from stretto.synth.schedule import Move, Schedule
from stretto.synth.symmetry import Symmetry
from stretto.synth.waves import rows_of

__all__ = [
    "Group",
    "Lines",
    "Rows",
    "Slots",
    "loop",
    "only_root",
    "relayed",
    "stored",
    "width_of",
]

Table = tuple[str, str, list[tuple[Any, ...]]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Rows:
    """What differs between emitted files."""

    tables: tuple[Table, ...]
    body: list[str]
    parameters: str = ""
    imports: str = "Ranks, algorithm"


class Slots:
    """Scratch slots: counted per orbit, so that no two images meet in one."""

    def __init__(self, symmetry: Symmetry) -> None:
        self._symmetry = symmetry
        self._used: Counter[int] = Counter()
        self._slot: dict[tuple[int, int], int] = {}

    def take(self, chunk: int, rank: int) -> int:
        """Return a slot of the rank for the chunk."""
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

    @property
    def names(self) -> str:
        """Return how a loop names the slots of a row, which end it."""
        return ", held, kept" if self.count else ""

    def without(self, rows: list[tuple[Any, ...]]) -> list[tuple[Any, ...]]:
        """Return rows that end in two slots; without them when there are none."""
        return rows if self.count else [row[:-2] for row in rows]


class Lines:
    """The moves that a table names: every one, or of a loop over waves the ways."""

    def __init__(self, schedule: Schedule, *, combine: bool = False) -> None:
        rows = rows_of(schedule, combine=combine)
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

    def ordered(self) -> list[Move]:
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

    def first(self, move: Move) -> tuple[int, ...]:
        """Return the first wave of a row, which ends it; nothing without a loop."""
        return self._first[move][:1] if self.waves else ()

    def place(self, move: Move) -> int:
        """Return where in a wave a move is."""
        return self._first[move][1]


class Group:
    """How a file speaks of the ranks that take part: of all, or of the members."""

    def __init__(self, schedule: Schedule) -> None:
        network = schedule.demand.network
        self.members = network.members
        self.whole = len(network.members) == network.num_ranks
        self.all = "ranks" if self.whole else "ranks.members"
        self.place = "" if self.whole else ".place"
        """What follows a rank where its part of a buffer is meant."""

    def own(self, dst: str) -> str:
        """Return what a rank adds of its own; who only relays has nothing."""
        mine = f"{dst}.input[at]"
        return mine if self.whole else f"[{mine}] if {dst} in MEMBERS else []"


def relayed(slots: Slots, width: int = 1) -> list[str]:
    """Return the lines that take data from a relay's slot, where they lie in one."""
    if not slots.count:
        return []
    return ["if held >= 0:", f"    data = {_slot('src', 'held', slots, width)}"]


def stored(slots: Slots, target: str, width: int = 1) -> list[str]:
    """Return the lines that store data: in a relay's slot, or where they belong."""
    if not slots.count:
        return [f"{target} = data"]
    return [
        "if kept >= 0:",
        f"    {_slot('dst', 'kept', slots, width)} = data",
        "else:",
        f"    {target} = data",
    ]


def _slot(rank: str, number: str, slots: Slots, width: int) -> str:
    span = (
        number if width == 1 else f"{number} * {width} : {number} * {width} + {width}"
    )
    return f'{rank}.scratch("relay", {slots.count * width})[{span}]'


def loop(
    symmetry: Symmetry,
    header: str,
    names: list[str],
    body: list[str],
    *,
    waves: int = 0,
) -> list[str]:
    """Return a loop over a table, and inside it over the images of its ranks.

    With `waves` the table is gone through so often, each row for its next piece.
    """
    ranks = [f"{name} = ranks[{name}_]" for name in names]
    if symmetry.order > 1:
        ranks = [f"{name} = ranks[image({name}_, turn)]" for name in names]
        inner = ["for turn in IMAGES:", *_indented([*ranks, *body])]
    else:
        inner = [*ranks, *body]
    if not waves:
        return [header, *_indented(inner)]
    turn = [
        "i = wave - first",
        "if not 0 <= i < len(pieces):",
        "    continue  # not begun yet, or all through",
        "piece = pieces[i]",
    ]
    return [
        f"for wave in range({waves}):",
        *_indented([header, *_indented([*turn, *inner])]),
    ]


def _indented(lines: list[str]) -> list[str]:
    return [f"    {line}" for line in lines]


def only_root(root: int) -> list[str]:
    """Return the lines that refuse another root."""
    return [
        f"if root != {root}:",
        f'    raise ValueError(f"made for root {root}, not {{root}}")',
    ]


def width_of(schedule: Schedule) -> int:
    """Return the chunks of one piece of a broadcast or reduce."""
    demand = schedule.demand
    whole = len(demand.network.members) * demand.split
    if demand.pieces and whole % demand.pieces:
        raise CallError(
            f"{demand.pieces} pieces of {whole} chunks; want a divisor:"
            " choose split so that ranks x split is a multiple"
        )
    return whole // demand.pieces if demand.pieces else 1
