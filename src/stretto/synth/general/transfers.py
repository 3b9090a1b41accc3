"""All transfers of a cut into pieces: what is moved, and what must have come before."""

from __future__ import annotations

from dataclasses import dataclass, field
from fractions import Fraction

from stretto.synth.planning.jobs import PlannedTransfer
from stretto.synth.schedules.schedule import TimedMove

__all__ = ["TimedTransfers"]


@dataclass(slots=True)
class TimedTransfers:
    """Jobs for the clock, and the moves that they are."""

    name: str
    jobs: list[PlannedTransfer] = field(default_factory=list)
    moves: list[TimedMove] = field(default_factory=list)
    owners: tuple[int, ...] = ()
    """Of all_reduce, where each chunk's sum is complete first."""

    def add(
        self, move: TimedMove, share: Fraction, after: tuple[int, ...], wave: float
    ) -> int:
        """Add a transfer after others; return its number."""
        self.moves.append(move)
        self.jobs.append(PlannedTransfer(move.links, share, after, wave))
        return len(self.jobs) - 1
