"""Moves that run at once: none may disturb another.

Groups are run as a kernel runs them: every thread waits for all packets, loads what the
moves read at its elements, and stores. So a move may overwrite what another of its
group reads, at the same elements and nowhere else; it may never read or overwrite what
another one stores. Copy engines run each move by itself, in any order: then not even
the former.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from stretto.compiler.plan import Loc, Move
from stretto.compiler.verify.memory import Cell, PlanMemory


class Disturbed(NamedTuple):
    """Which move of a group must not run beside another, and why."""

    later: int
    why: str


class TouchedPlaces:
    """The memory that each move of a group touches."""

    def __init__(self, moves: Sequence[Move], memory: PlanMemory) -> None:
        self.moves, self.memory = moves, memory
        self.stored: dict[int, int] = {}
        """Each place that is stored to, and the move that does so."""
        self.read: dict[int, list[int]] = {}

    def disturb(self, *, in_any_order: bool) -> Disturbed | None:
        """Return a pair of moves that disturb each other."""
        for nth, move in enumerate(self.moves):
            for cell in self._cells(move, move.dsts):
                if self.stored.setdefault(id(cell), nth) != nth:
                    return Disturbed(nth, "overwrites what runs beside it")
            for cell in self._cells(move, move.srcs):
                self.read.setdefault(id(cell), []).append(nth)
        for place, writer in self.stored.items():
            for reader in self.read.get(place, ()):
                if reader == writer:
                    continue
                if reader > writer:
                    return Disturbed(reader, "reads what is stored beside it")
                if in_any_order:
                    return Disturbed(writer, "overwrites what is read beside it")
        return None

    def _cells(self, move: Move, locs: Sequence[Loc]) -> list[Cell]:
        width = move.stop - move.start
        return [cell for loc in locs for cell in self.memory.row(loc, width)]
