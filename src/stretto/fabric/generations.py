"""How the ranks of a world change: what is proposed, and who goes on; no I/O."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from stretto.fabric.faults import Fault
from stretto.fabric.messages import (
    Abandoned,
    Departed,
    Prepare,
    Propose,
    Verdict,
)


@dataclass(slots=True)
class Generations:
    """Who was who in each generation: identities, in rank order."""

    rosters: dict[int, tuple[str, ...]] = field(default_factory=dict)
    _fresh: set[int] = field(default_factory=set)

    def begin(self, generation: int, order: tuple[str, ...], *, is_fresh: bool) -> None:
        """Take note of a generation, in which groups of earlier ones may end."""
        self.rosters[generation] = order
        if is_fresh:
            self._fresh.add(generation)

    @property
    def newest(self) -> tuple[str, ...]:
        """Who the ranks of the last generation are."""
        return self.rosters[max(self.rosters)]

    def identities(self, ranks: Iterable[int], generation: int) -> list[str]:
        """Return who these ranks of a generation are."""
        return [self.rosters[generation][rank] for rank in ranks]

    def left_out(self, ranks: Iterable[int], generation: int) -> tuple[int, ...]:
        """Return which of these ranks a later generation leaves out.

        Without any they go on among themselves. One that is fresh leaves out everybody.
        """
        later = [g for g in self.rosters if g > generation]
        stay = set(self.rosters[generation]).intersection(
            *(() if g in self._fresh else self.rosters[g] for g in later)
        )
        return tuple(r for r in ranks if self.rosters[generation][r] not in stay)


@dataclass(slots=True, kw_only=True)
class Change:
    """A proposal while those whom it concerns prepare themselves."""

    wanted: Propose
    attempt: int
    deadline: float
    ready: set[str] = field(default_factory=set)

    @property
    def order(self) -> tuple[str, ...]:
        """Who is to be rank 0, 1, ..."""
        return self.wanted.identities

    @property
    def missing(self) -> list[str]:
        """Who has not prepared itself."""
        return [i for i in self.order if i not in self.ready]

    def is_for(self, wanted: Propose) -> bool:
        """Whether somebody else wants the same."""
        mine = self.wanted
        return (mine.identities, mine.is_fresh) == (wanted.identities, wanted.is_fresh)

    def prepare(self) -> Prepare:
        """Return what those in it are asked."""
        return Prepare(
            generation=self.wanted.generation,
            attempt=self.attempt,
            identities=self.order,
            is_fresh=self.wanted.is_fresh,
        )


def abandoned(wanted: Propose, fault: Fault) -> Abandoned:
    """Return the verdict on a proposal that comes to nothing."""
    return Abandoned(
        generation=wanted.generation,
        identities=wanted.identities,
        error=fault.error,
        text=fault.text,
        blamed=fault.blamed,
    )


def said_fault(said: Abandoned | Departed | Verdict) -> Fault:
    """Return the fault that a message tells of; where it tells of none, no error."""
    return Fault(error=said.error, text=said.text, blamed=said.blamed)


def ended_by(fault: Fault) -> Verdict:
    """Return the verdict that ends everything for who hears it."""
    return Verdict(group="", error=fault.error, text=fault.text, blamed=fault.blamed)
