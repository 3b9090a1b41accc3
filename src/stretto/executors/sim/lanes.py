"""Where a lane stands, what it waits for, and what it sends."""

from __future__ import annotations

from typing import NamedTuple, TypeAlias

from stretto.compiler.plan import Loc, Move, Signal, Step


class SimulatedLane:
    """One lane of a rank, and how far it is."""

    __slots__ = (
        "at", "began_us", "blocked_on", "busy_us", "causes", "epoch", "index",
        "moving", "now_us", "rank", "steps",
    )  # fmt: skip

    def __init__(self, rank: int, index: int, steps: tuple[Step, ...]) -> None:
        self.rank, self.index, self.steps = rank, index, steps
        self.at, self.epoch = 0, 0
        self.now_us = 0.0
        self.moving = 0
        """Operands of the present move that have not left, or not come."""
        self.began_us = self.busy_us = 0.0
        """When the present move began, and until when it keeps the lane itself busy."""
        self.blocked_on: Key | None = None
        self.causes: list[Arrival] = []
        """What it had to wait for, so far."""


class Arrival(NamedTuple):
    """When something arrives, whose it is, and when it left there."""

    at_us: float
    lane: SimulatedLane
    left_us: float


Key: TypeAlias = tuple[object, int, int]
"""What is waited for: a channel, epoch, number; or a rank, its epoch, a unit."""


class Sent(NamedTuple):
    """What a parcel is: an operand of a move, or a signal."""

    lane: SimulatedLane
    step: Move | Signal
    epoch: int
    loc: Loc | None = None
    behind: bool = False
    """Whether the lane went on without waiting for it to leave."""
