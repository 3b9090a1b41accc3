"""The search: islands of candidates, judged cheaply first, the better ones dearly.

A search is a generator: it yields what it wants judged and is sent the verdicts. What
it asks for depends on nothing else, so a recorded search is resumed, or replayed, by
sending what was recorded.
"""

from __future__ import annotations

import math
import random
from collections.abc import Generator, Sequence
from dataclasses import dataclass, field
from typing import Any, Generic, TypeAlias, TypeVar

from stretto.search.evolve.problem import Problem, Verdict

__all__ = ["Asked", "Evolution", "Settings", "Trial", "evolve"]

C = TypeVar("C")


@dataclass(frozen=True, slots=True)
class Settings:
    """How a search is done."""

    evals: int = 1000
    """Candidates that are judged, each on one rung or more."""
    seed: int = 0
    islands: int = 4
    brood: int = 6
    """New candidates of an island in a generation."""
    members: int = 24
    """Candidates that an island keeps."""
    explore: float = 0.4
    """Which part of the evaluations is spent on looking around."""


@dataclass(frozen=True, slots=True)
class Trial:
    """A candidate that shall be judged on a rung."""

    number: int
    text: str
    rung: int
    way: str
    parents: tuple[int, ...]
    island: int
    generation: int


Asked: TypeAlias = tuple[Trial, ...]
Evolution: TypeAlias = Generator[Asked, Sequence[Verdict], "int | None"]
"""Yields trials, is sent their verdicts, returns the number of the best."""


@dataclass(slots=True)
class _Member(Generic[C]):
    """A candidate that has been judged, or is being judged."""

    number: int
    candidate: C
    text: str
    size: int
    way: str
    parents: tuple[_Member[C], ...]
    island: int
    generation: int
    rung: int = -1
    cost: float = math.inf
    refused: bool = False

    @property
    def rank(self) -> tuple[float, float, int, int]:
        """Sort by: how far it came, then the cost there, then how short it is."""
        return -self.rung, self.cost, self.size, self.number


@dataclass(slots=True)
class _Ways:
    """Which way of changing is taken: the more often, the more it has brought."""

    names: Sequence[str]
    tried: dict[str, float] = field(default_factory=dict)
    won: dict[str, float] = field(default_factory=dict)

    def pick(self, rng: random.Random) -> str:
        weights = [
            0.1 + (1 + self.won.get(n, 0)) / (4 + self.tried.get(n, 0))
            for n in self.names
        ]
        return rng.choices(list(self.names), weights)[0]

    def tell(self, name: str, *, better: bool) -> None:
        for counts in (self.tried, self.won):  # what was long ago counts less
            counts[name] = counts.get(name, 0.0) * 0.98
        self.tried[name] += 1
        self.won[name] += better


class _Search(Generic[C]):
    """What a search knows."""

    def __init__(self, problem: Problem[C], settings: Settings) -> None:
        self.problem, self.settings = problem, settings
        self.rng = random.Random(settings.seed)
        self.islands: list[list[_Member[C]]] = [[] for _ in range(settings.islands)]
        self.archive: dict[int, _Member[C]] = {}
        """The best of each size, in steps: short ones are not driven out by long ones.
        """
        self.seen: set[str] = set()
        self.behaviours: set[str] = set()
        self.ways = _Ways(problem.changes())
        self.count, self.generation = 0, 0

    def evolve(self) -> Evolution:
        """Search until so many candidates are judged."""
        first = [
            self._new(c, "seed", (), i % self.settings.islands)
            for i, c in enumerate(self.problem.seeds())
        ]
        yield from self._judge([m for m in first if m is not None])
        while self.count < self.settings.evals:
            self.generation += 1
            brood = [m for i in range(len(self.islands)) for m in self._brood(i)]
            if not brood:
                break  # nothing new can be found any more
            yield from self._judge(brood)
            if self.generation % 10 == 0:
                self._migrate()
        every = [m for island in self.islands for m in island if m.rung >= 0]
        return min(every, key=lambda m: m.rank).number if every else None

    def _new(
        self, candidate: C, way: str, parents: tuple[_Member[C], ...], island: int
    ) -> _Member[C] | None:
        """Return a candidate as a member, or None where nothing new would be judged."""
        text = self.problem.spell(candidate)
        if text in self.seen or self.count >= self.settings.evals:
            return None
        self.seen.add(text)
        behaviour = self.problem.behaviour(candidate)
        if behaviour in self.behaviours:
            return None
        self.behaviours.add(behaviour)
        self.count += 1
        return _Member(
            self.count, candidate, text, self.problem.size(candidate), way, parents,
            island, self.generation,
        )  # fmt: skip

    def _brood(self, island: int) -> list[_Member[C]]:
        made: list[_Member[C]] = []
        for _ in range(20 * self.settings.brood):
            if len(made) == self.settings.brood:
                break
            way, parents = self._parents(island)
            if parents:
                pair = [p.candidate for p in parents]
                child = self.problem.change(way, pair, self.rng)
            else:
                way, child = "fresh", self.problem.fresh(self.rng)
            member = self._new(child, way, parents, island)
            made += [member] if member else []
        return made

    def _parents(self, island: int) -> tuple[str, tuple[_Member[C], ...]]:
        members, rng = self.islands[island], self.rng
        explores = self.count < self.settings.explore * self.settings.evals
        if not members or rng.random() < (0.1 if explores else 0.02):
            return "fresh", ()
        pairs = []
        for _ in range(2):
            if self.archive and rng.random() < 0.25:
                pairs.append(self.archive[rng.choice(sorted(self.archive))])
                continue
            drawn = rng.sample(members, min(len(members), 2 if explores else 4))
            pairs.append(min(drawn, key=lambda m: m.rank))
        return self.ways.pick(rng), tuple(pairs)

    def _judge(self, members: list[_Member[C]]) -> Evolution:
        """Judge on one rung after the other; an island's better third goes on."""
        left = members
        for rung in range(len(self.problem.rungs)):
            if not left:
                break
            verdicts = yield tuple(
                Trial(
                    m.number, m.text, rung, m.way, tuple(p.number for p in m.parents),
                    m.island, m.generation,
                )
                for m in left
            )  # fmt: skip
            for member, verdict in zip(left, verdicts, strict=True):
                if verdict.passed:
                    member.rung, member.cost = rung, verdict.cost
                else:
                    member.refused = True
            left = self._go_on(left, rung)
        for member in members:
            self._settle(member)
        for island in self.islands:
            island.sort(key=lambda m: m.rank)
            del island[self.settings.members :]
        return None

    def _go_on(self, left: list[_Member[C]], rung: int) -> list[_Member[C]]:
        passed = [m for m in left if not m.refused]
        if rung + 1 == len(self.problem.rungs) or not self.generation:
            return passed
        chosen = []
        for island in range(len(self.islands)):
            mine = sorted(
                (m for m in passed if m.island == island), key=lambda m: m.rank
            )
            chosen += mine[: math.ceil(len(mine) / 3)]
        return sorted(chosen, key=lambda m: m.number)

    def _settle(self, member: _Member[C]) -> None:
        """Take a judged candidate in, and say whether its way was a good one."""
        if member.parents:
            best = min(p.rank[:2] for p in member.parents)
            self.ways.tell(
                member.way, better=not member.refused and member.rank[:2] < best
            )
        if member.refused:
            return
        self.islands[member.island].append(member)
        step = int(math.log2(max(1, member.size)) * 2)
        if step not in self.archive or member.rank < self.archive[step].rank:
            self.archive[step] = member

    def _migrate(self) -> None:
        """The best of each island are members of the next one, too."""
        best = [island[:1] for island in self.islands]
        for i, found in enumerate(best):
            island = self.islands[(i + 1) % len(self.islands)]
            if found and found[0] not in island:
                island.insert(0, found[0])


def evolve(problem: Problem[Any], settings: Settings) -> Evolution:
    """Return a search of a problem."""
    return _Search(problem, settings).evolve()
