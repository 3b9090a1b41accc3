"""Do a search: ask the loop, hear the judges, write it down; resume what was begun."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from stretto.errors import CallError, ParseError
from stretto.search.evolve.loop import Asked, Settings, Trial, evolve
from stretto.search.evolve.problem import Problem, Verdict
from stretto.search.evolve.runs import Judged, SearchRun

__all__ = ["Judge", "Searched", "fresh_of", "search"]

Judge = Callable[[Asked], Iterable[Verdict]]
"""Gives verdicts in the order of the trials, each as soon as it and those before are
there."""


@dataclass(frozen=True, slots=True)
class Searched:
    """What a search found."""

    text: str
    verdict: Verdict
    held_out: Mapping[str, float]
    """Figures of the winner on data that nobody searched on."""
    first: Mapping[str, float]
    """The same figures of the first seed."""
    evals: int
    to_best: int
    """The number of the evaluation that found it."""
    run: SearchRun

    def table(self) -> list[dict[str, Any]]:
        """Return how the best cost fell: a row for each candidate that was better."""
        rows: list[dict[str, Any]] = []
        for one in progress(self.run.rows()):
            trial, verdict = one.trial, one.verdict
            rows.append(
                {"evaluation": trial.number, "cost": verdict.cost, "way": trial.way,
                 "text": trial.text}
            )  # fmt: skip
        return rows

    def save(self, path: str | Path) -> None:
        """Write the run into a file."""
        self.run.copy(path)


def progress(rows: Iterable[Judged]) -> Iterator[Judged]:
    """Yield those that were better than all before, on the last rung that is there."""
    every = [one for one in rows if one.verdict.passed]
    last = max((one.trial.rung for one in every), default=0)
    best = float("inf")
    for one in every:
        if one.trial.rung == last and one.verdict.cost < best:
            best = one.verdict.cost
            yield one


def fresh_of(seed: int, trial: Trial) -> int:
    """Return the number that decides the data of a trial: other data each time."""
    said = f"{seed} {trial.number} {trial.rung}".encode()
    return int.from_bytes(hashlib.sha256(said).digest()[:6], "big")


def _here(problem: Problem[Any], settings: Settings) -> Judge:
    """Return judges in this process."""

    def judge(asked: Asked) -> Iterator[Verdict]:
        for trial in asked:
            fresh = fresh_of(settings.seed, trial)
            yield problem.judged(trial.text, trial.rung, fresh=fresh)

    return judge


def search(
    problem: Problem[Any],
    settings: Settings = Settings(),  # noqa: B008 - frozen
    *,
    run: SearchRun | None = None,
    judge: Judge | None = None,
    told: Callable[[Judged], object] = lambda one: None,
) -> Searched:
    """Search, from the start or from where a run was left; return what was found.

    What is in the run is not judged again, but sent to the loop as it was recorded.
    """
    _check(settings)
    run = SearchRun() if run is None else run
    run.begin({"problem": problem.name, **_said(settings), **problem.said})
    judge = judge or _here(problem, settings)
    recorded = iter(list(run.rows()))
    steps, verdicts = getattr(problem, "loop", evolve)(problem, settings), None
    while True:
        try:
            asked = next(steps) if verdicts is None else steps.send(verdicts)
        except StopIteration as end:
            return _found(problem, run, end.value)
        verdicts = _verdicts(asked, recorded, judge, run, told)


def _verdicts(
    asked: Asked,
    recorded: Iterator[Judged],
    judge: Judge,
    run: SearchRun,
    told: Callable[[Judged], object],
) -> Sequence[Verdict]:
    """Return the verdicts of trials: as they are recorded, the rest from the judges."""
    found: list[Verdict] = []
    for trial, old in zip(asked, recorded, strict=False):
        if old.trial != trial:
            raise ParseError(
                f"{run.path}: its evaluation {old.trial.number} judged "
                f"{old.trial.text[:80]!r}, which now would be {trial.text[:80]!r}: "
                "the problem or this program has changed; want a new file"
            )
        found.append(old.verdict)
        told(old)
    left = asked[len(found) :]
    for trial, verdict in zip(left, judge(left) if left else (), strict=True):
        run.add(trial, verdict)
        found.append(verdict)
        told(Judged(trial, verdict))
    return found


def _found(problem: Problem[Any], run: SearchRun, best: int | None) -> Searched:
    rows = list(run.rows())
    if best is None:
        why = next((one.verdict.refused for one in rows if one.verdict.refused), "none")
        raise CallError(
            f"search of {problem.name}: all {len(rows)} candidates were refused; the "
            f"first: {why}"
        )
    last = max(
        (one for one in rows if one.trial.number == best),
        key=lambda one: one.trial.rung,
    )
    held_out = dict(problem.held_out(problem.parse(last.trial.text)))
    first = dict(problem.held_out(problem.parse(rows[0].trial.text)))
    run.say(
        best=str(best),
        held_out=json.dumps({"best": held_out, "first": first}, sort_keys=True),
    )
    count = max(one.trial.number for one in rows)
    return Searched(last.trial.text, last.verdict, held_out, first, count, best, run)


def _said(settings: Settings) -> dict[str, str]:
    return {key: str(value) for key, value in asdict(settings).items()}


def _check(settings: Settings) -> None:
    for name in ("evals", "islands", "brood", "members"):
        value = getattr(settings, name)
        if not isinstance(value, int) or value < 1:
            raise CallError(f"{name}={value!r}: want a whole number, at least 1")
    if not 0 <= settings.explore <= 1:
        raise CallError(f"explore={settings.explore!r}: want a share, 0 to 1")
