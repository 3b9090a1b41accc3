"""A proved plan as executors take it: with what they run of it, proved in its turn.

Kernels and copy engines do not run a plan step by step: they run rewrites of it.
Whoever proves plans makes this class (`verify`); executors ask it, and never prove.
"""

from __future__ import annotations

import abc
from dataclasses import dataclass
from typing import TypeAlias

from stretto.compiler.plan.plan import Plan
from stretto.compiler.plan.steps import Step
from stretto.program.ir import Verified

SIDE_BY_SIDE = 4
"""Moves whose loads are in flight together: more would not fit in the registers."""
Batch: TypeAlias = list[tuple[int, Step]]
"""Steps of one kind, with their places in the lane."""
Lanes: TypeAlias = tuple[tuple[tuple[Batch, ...], ...], ...]
"""The batches of every rank and lane, in order."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Batched:
    """A plan as a kernel runs it."""

    plan: Plan
    """What is run; faults name its steps."""
    lanes: Lanes
    proof: Verified[Plan]
    """What was proved: these batches, alone or with what runs before and after them."""

    def batches(self, rank: int, lane: int = 0) -> tuple[Batch, ...]:
        """Return the batches of a lane."""
        return self.lanes[rank][lane]


@dataclass(frozen=True, slots=True, kw_only=True)
class Copied:
    """A plan of one lane a rank, as copy engines run it."""

    plan: Plan
    """What is run; faults name its steps."""
    ranks: tuple[tuple[Batch, ...], ...]
    """What every rank enqueues, between barriers of everybody: batches of moves."""
    proof: Verified[Plan]


@dataclass(frozen=True, slots=True, kw_only=True)
class Halves:
    """A kernel, and the copies after it; a barrier of everybody ends the call."""

    kernel: Batched
    copies: Copied


def hands_round_on_engine(plan: Plan) -> bool:
    """Return whether a phase of a kernel's plan asks for copy engines."""
    schedule = plan.schedule
    return schedule.protocol != "engine" and any(
        schedule.of(phase).protocol == "engine" for phase in schedule.phases
    )


class ProvedPlan(Verified[Plan], abc.ABC):
    """A plan that was proved. Only `verify` makes one.

    Every rewrite is made and proved when it is first asked for, and then kept; one that
    cannot be proved raises `PlanError`.
    """

    __slots__ = ()

    @abc.abstractmethod
    def batched(self) -> Batched:
        """Return the plan as a kernel runs it."""

    @abc.abstractmethod
    def closed(self) -> ProvedPlan:
        """Return a plan each of whose epochs is closed, however much there is to move.

        Plans without packets are: their signals never stay out. The others get more.
        """

    @abc.abstractmethod
    def copied(self) -> Copied:
        """Return the plan as copy engines run it."""

    @abc.abstractmethod
    def in_halves(self, *, several_tiles: bool = False) -> Halves:
        """Return the plan as a kernel and the copies that follow it.

        A kernel of several tiles runs again and again before the barrier, which then
        closes the last of its epochs only: it closes each by signals of its own.
        """

    @abc.abstractmethod
    def why_not_on_engines(self) -> str:
        """Return why a plan that asks for copy engines has none, or nothing."""

    @abc.abstractmethod
    def barrier(self) -> Batched:
        """Return the barrier of everybody that stands beside the plan's copies."""

    @abc.abstractmethod
    def on_blocks(self, blocks: int) -> ProvedPlan:
        """Return the plan for so many blocks."""

    def as_one_kernel(self, *, several_tiles: bool) -> Batched:
        """Return the plan as one kernel runs it; of several tiles, each is closed."""
        return (self.closed() if several_tiles else self).batched()
