"""What the referee says of a plan, and why, in a few lines."""

from __future__ import annotations

import enum
from dataclasses import dataclass

__all__ = ["Fault", "Outcome", "Verdict"]


class Outcome(enum.Enum):
    """What became of a run."""

    RIGHT = "right"
    WRONG = "a wrong value"
    ORDER = "a sum in another order"
    UNDEFINED = "memory read that nobody wrote"
    RACE = "a race"
    OVERWRITTEN = "overwritten by another call"
    HANG = "a hang"
    OUTSIDE = "a place that does not exist"
    UNDECIDED = "undecided: more schedules than the bound"


class Fault(Exception):
    """Raised inside a run when its verdict is known."""

    def __init__(self, outcome: Outcome, text: str, *trace: str) -> None:
        super().__init__(text)
        self.outcome, self.text, self.trace = outcome, text, trace


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """What the referee found."""

    outcome: Outcome
    text: str = ""
    trace: tuple[str, ...] = ()
    """The steps that led there, the last ones."""
    scope: str = ""
    """The counts, tiles and calls it was found with."""
    schedules: int = 1
    """How many different schedules were run."""

    @property
    def right(self) -> bool:
        """Return whether nothing was found."""
        return self.outcome is Outcome.RIGHT

    def __str__(self) -> str:
        """Return it as a person wants to read it."""
        lines = [f"{self.outcome.value}: {self.text}" if self.text else "right"]
        lines += [f"  with {self.scope}"] * bool(self.scope)
        return "\n".join([*lines, *(f"    {step}" for step in self.trace)])
