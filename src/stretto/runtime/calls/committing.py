"""Steps that all ranks commit or none: what those who are left decide; no I/O.

A rank enters a step's flag, a small all_reduce, only when all of its gradients are
whole, and commits when the flag has ended. So whoever has committed knows that all had
entered. After a fault each says at which step it is, and whether it had entered.

A change that nobody's death asks for begins after the step whose flag says that all
ranks have heard of the very same one: it carries its number, and the opposite of that.
"""

from __future__ import annotations

import enum
from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class StepReport:
    """How far a rank is after a fault."""

    step: int
    """How many steps it has committed."""
    entered: bool
    """Whether its gradients of the next one are whole."""


class StepVerdict(enum.Enum):
    """What a rank does about the step that broke."""

    COMMIT = "commit"
    """Another one has committed it: so does this rank, with its whole gradients."""
    UNDO = "undo"
    """Nobody has: all do it again."""
    STOP = "stop"
    """Another one has committed what this rank has no whole gradients for: a fault of
    ours, or of the program's. Nobody may go on."""


def judge(mine: StepReport, others: Iterable[StepReport]) -> StepVerdict:
    """Return what a rank does, by the reports of all who are left."""
    most = max([mine.step, *(one.step for one in others)])
    if most == mine.step:
        return StepVerdict.UNDO
    if most == mine.step + 1 and mine.entered:
        return StepVerdict.COMMIT
    return StepVerdict.STOP


def flag_of(change: int) -> tuple[int, int]:
    """Return what a rank puts into a flag: of 0, that it has heard of no change."""
    return change, -change


def agreed_change(least: Iterable[int]) -> int:
    """Return the change that all ranks have heard of, by the least of their flags.

    0: none, or some have heard of another. All ranks see the same.
    """
    first, opposite = least
    return first if first == -opposite else 0
