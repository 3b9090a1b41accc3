"""What a search is told of a problem, and what it hears of a candidate."""

from __future__ import annotations

import math
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Generic, TypeVar

from stretto.errors import StrettoError
from stretto.search.language import CHANGES, Form, Policy, changed, grown

__all__ = ["PolicyProblem", "Problem", "Verdict"]

C = TypeVar("C")


@dataclass(frozen=True, slots=True)
class Verdict:
    """What a judge says: a cost, the less the better, or why a candidate is refused."""

    cost: float = math.inf
    low: float = math.nan
    high: float = math.nan
    """Where the cost lies, with 95 % confidence, if it was measured."""
    refused: str = ""
    facts: Mapping[str, float] = field(default_factory=dict)

    @classmethod
    def of(cls, cost: Any, **facts: float) -> Verdict:
        """Return the verdict of a cost; what is no finite number is a refusal."""
        try:
            value = float(cost)
        except (TypeError, ValueError):
            return cls(refused=f"the cost is no number: {str(cost)[:80]!r}")
        if not math.isfinite(value):
            return cls(refused=f"the cost is {value}")
        return cls(value, facts=facts)

    @property
    def passed(self) -> bool:
        """Whether there is a cost."""
        return not self.refused


class Problem(Generic[C]):
    """What is looked for, how it is changed, and who judges it.

    A problem is one class in one file of `stretto.search.problems`, or what an entry
    point of the group `stretto.problems` names. Judges of a rung see only what the rung
    before let pass: the first is cheap, the last says what counts.
    """

    name: ClassVar[str] = ""
    rungs: tuple[str, ...] = ("whole",)
    isolated: ClassVar[bool] = False
    """Whether to judge in child processes: for whatever may hang, die or eat memory."""
    apart: ClassVar[bool] = False
    """Whether it has processes of its own for that, which others would disturb."""

    @classmethod
    def lacks(cls) -> str:
        """Return what is missing here for it to be searched in full, or nothing."""
        return ""

    @property
    def said(self) -> Mapping[str, str]:
        """Everything that decides what is found, such as files by their digests."""
        return {}

    def seeds(self) -> Sequence[C]:
        """Return where a search begins; the winner is held against the first."""
        raise NotImplementedError

    def changes(self) -> Sequence[str]:
        """Return the names of the ways to change candidates."""
        raise NotImplementedError

    def change(self, way: str, parents: Sequence[C], rng: random.Random) -> C:
        """Return a new candidate made of two others."""
        raise NotImplementedError

    def fresh(self, rng: random.Random) -> C:
        """Return a candidate made of none."""
        raise NotImplementedError

    def spell(self, candidate: C) -> str:
        """Return a candidate as text, which is its identity."""
        raise NotImplementedError

    def parse(self, text: str) -> C:
        """Return the candidate of a text; an error of ours says what is wrong."""
        raise NotImplementedError

    def behaviour(self, candidate: C) -> str:
        """Return what is the same for candidates that need not both be judged."""
        return self.spell(candidate)

    def size(self, candidate: C) -> int:
        """Return how long a candidate is: of equals the shortest wins."""
        return len(self.spell(candidate))

    def judge(self, candidate: C, rung: int, *, fresh: int) -> Verdict:
        """Return the verdict of a rung, on data that the number `fresh` decides."""
        raise NotImplementedError

    def held_out(self, candidate: C) -> Mapping[str, float]:
        """Return figures of a candidate on data that nobody searched on."""
        return {}

    def extra(self, candidate: C) -> Mapping[str, Any]:
        """Return what a file of this candidate has besides: values, lists of tables."""
        return {}

    def judged(self, text: str, rung: int, *, fresh: int = 0) -> Verdict:
        """Return the verdict of a text: what cannot be read is refused."""
        try:
            return self.judge(self.parse(text), rung, fresh=fresh)
        except StrettoError as e:
            return Verdict(refused=str(e)[:400])


class PolicyProblem(Problem[Policy]):
    """A problem whose candidates are terms: only its form, seeds and judge are said."""

    form: ClassVar[Form]
    begin: ClassVar[Sequence[str]] = ()

    def seeds(self) -> Sequence[Policy]:
        """Return what is written in `begin`."""
        return [self.form.parse(text) for text in self.begin]

    def changes(self) -> Sequence[str]:
        """Return the ways of the language."""
        return tuple(CHANGES)

    def change(self, way: str, parents: Sequence[Policy], rng: random.Random) -> Policy:
        """Change terms by genetic programming."""
        return changed(self.form, way, parents, rng)

    def fresh(self, rng: random.Random) -> Policy:
        """Return random terms."""
        parts = ((n, grown(self.form, k, 3, rng)) for n, k in self.form.kinds.items())
        return Policy(tuple(parts))

    def spell(self, candidate: Policy) -> str:
        """Return terms as text."""
        return self.form.spell(candidate)

    def parse(self, text: str) -> Policy:
        """Return the terms of a text."""
        return self.form.parse(text)

    def behaviour(self, candidate: Policy) -> str:
        """Return what policies share that decide alike on random features."""
        return self.form.behaviour(candidate)

    def size(self, candidate: Policy) -> int:
        """Return the number of terms."""
        return candidate.size
