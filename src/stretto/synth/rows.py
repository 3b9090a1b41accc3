"""What emitted files have in common: tables, loops over images, scratch slots."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import Any

from stretto.errors import CallError
from stretto.synth.schedule import Schedule
from stretto.synth.symmetry import Symmetry

__all__ = [
    "Group",
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
    symmetry: Symmetry, header: str, names: list[str], body: list[str]
) -> list[str]:
    """Return a loop over a table, and inside it over the images of its ranks."""
    if symmetry.order == 1:
        turned = [f"{name} = ranks[{name}_]" for name in names]
        return [header, *(f"    {line}" for line in [*turned, *body])]
    turned = [f"{name} = ranks[image({name}_, turn)]" for name in names]
    return [
        header,
        "    for turn in IMAGES:",
        *(f"        {line}" for line in [*turned, *body]),
    ]


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
