"""What emitted files have in common: tables, loops over images, scratch slots."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import Any

from stretto.errors import CallError
from stretto.synth.schedule import Schedule
from stretto.synth.symmetry import Symmetry

__all__ = ["Rows", "Slots", "loop", "only_root", "width_of"]

Table = tuple[str, str, list[tuple[Any, ...]]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Rows:
    """What differs between emitted files."""

    tables: tuple[Table, ...]
    body: list[str]
    parameters: str = ""


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
    whole = demand.network.num_ranks * demand.split
    if demand.pieces and whole % demand.pieces:
        raise CallError(
            f"{demand.pieces} pieces of {whole} chunks; want a divisor:"
            " choose split so that ranks x split is a multiple"
        )
    return whole // demand.pieces if demand.pieces else 1
