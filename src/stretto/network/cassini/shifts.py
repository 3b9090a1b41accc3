"""Shifts of jobs on links that they share: how well they fit, and the best found.

A link's score is 1 less the mean of what is asked beyond its capacity, over that: 1
when nothing is. Among shifts of the same score those are taken that leave room between
the jobs, for computing times are never exact.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from stretto.network.cassini import graph
from stretto.network.cassini.circle import Arc, Circle, blur, demand, unified

__all__ = ["ShiftProblem", "Shifts", "best", "score"]

_RESTARTS, _SWEEPS = 6, 8
_BESIDE = 1e-4
"""What room between jobs is worth, beside the score."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ShiftProblem:
    """Jobs that hang together: their common circle, and what they ask of each link."""

    jobs: tuple[int, ...]
    circle: Circle
    asks: Mapping[int, Mapping[int, Any]]
    """By link and job, in Gb/s: one number for each part of the circle."""
    blurred: Mapping[int, Mapping[int, Any]]
    """The same, fading out about where it is asked."""
    capacity: Mapping[int, float]

    @classmethod
    def of(
        cls,
        part: Mapping[int, Sequence[int]],
        periods_ms: Mapping[int, float],
        arcs: Mapping[int, Mapping[int, Sequence[Arc]]],
        capacity: Mapping[int, float],
        **bounds: Any,
    ) -> ShiftProblem | None:
        """Return the problem of a part of the affinity graph; None without a circle.

        `arcs` are by job and link.
        """
        jobs = tuple(sorted({job for on in part.values() for job in on}))
        circle = unified([periods_ms[job] for job in jobs], **bounds)
        if circle is None:
            return None
        asks = {
            link: {job: demand(circle, jobs.index(job), arcs[job][link]) for job in on}
            for link, on in part.items()
        }
        blurred = {
            link: {job: blur(ask, circle.turns[jobs.index(job)]) for job, ask in on}
            for link, on in ((link, on.items()) for link, on in asks.items())
        }
        return cls(
            jobs=jobs,
            circle=circle,
            asks=asks,
            blurred=blurred,
            capacity={link: capacity[link] for link in part},
        )

    @property
    def part(self) -> dict[int, list[int]]:
        """Return the jobs of every link."""
        return {link: list(on) for link, on in self.asks.items()}

    def room(self, job: int) -> int:
        """Return how many shifts a job has: the parts of one of its turns."""
        return self.circle.parts // self.circle.turns[self.jobs.index(job)]

    def ms(self, parts: float) -> float:
        """Return parts of the circle as milliseconds."""
        return parts * self.circle.perimeter_ms / self.circle.parts


@dataclass(frozen=True, slots=True, kw_only=True)
class Shifts:
    """Shifts of the jobs of a problem, and the scores that they give."""

    problem: ShiftProblem
    parts: Mapping[int, int]
    """By job, how many parts of the circle later its turn begins."""
    scores: Mapping[int, float]
    """By link."""

    @property
    def score(self) -> float:
        """Return the mean score of the links."""
        return float(np.mean(list(self.scores.values())))

    @property
    def shifts_ms(self) -> dict[int, float]:
        """Return the shifts in milliseconds, by job."""
        return {job: self.problem.ms(parts) for job, parts in self.parts.items()}


def score(problem: ShiftProblem, parts: Mapping[int, int]) -> Shifts:
    """Return how well jobs fit with such shifts."""
    scores = {}
    for link, asks in problem.asks.items():
        total = sum(np.roll(ask, parts[job]) for job, ask in asks.items())
        over = np.maximum(0.0, total - problem.capacity[link]).mean()
        scores[link] = float(1 - over / problem.capacity[link])
    return Shifts(problem=problem, parts=dict(parts), scores=scores)


def best(problem: ShiftProblem, *, restarts: int = _RESTARTS) -> Shifts:
    """Return the best shifts found: link by link where there is no loop, else jointly.

    Without a loop what is best for every link can be had for all of them at once.
    """
    part = problem.part
    if graph.has_loop(part):
        return score(problem, _descend(problem, restarts))
    wanted = {}
    for link, on in part.items():
        alone = ShiftProblem(
            jobs=problem.jobs,
            circle=problem.circle,
            asks={link: problem.asks[link]},
            blurred={link: problem.blurred[link]},
            capacity=problem.capacity,
        )
        found = _descend(alone, restarts)
        wanted[link] = {job: float(found[job]) for job in on}
    periods = {job: float(problem.room(job)) for job in problem.jobs}
    # t_j is taken modulo its own turn, and so are the parts that links want of it
    shifts = graph.one_shift_each(part, wanted, periods)
    return score(problem, {job: round(t) for job, t in shifts.items()})


def _descend(problem: ShiftProblem, restarts: int) -> dict[int, int]:
    """Turn one job after another to where it is best, from several starts."""
    links = _alike(problem)
    on = [j for j in problem.jobs if any(j in a for a in problem.asks.values())]
    turned = {
        (link, job): (
            _turned(problem, job, ask),
            _turned(problem, job, problem.blurred[link][job]),
        )
        for link in links
        for job, ask in problem.asks[link].items()
    }
    draw = np.random.default_rng(0)
    found, least = dict.fromkeys(problem.jobs, 0), np.inf
    for start in range(restarts):
        parts = dict.fromkeys(problem.jobs, 0)
        if start:
            parts |= {job: int(draw.integers(problem.room(job))) for job in on}
        sums = {link: _sums(problem, turned, parts, link) for link in links}
        cost = np.inf
        for _ in range(_SWEEPS):
            before = cost
            for job in on[1:]:
                costs = _costs(problem, turned, parts, job, sums, links)
                parts[job] = int(np.argmin(costs))
                cost = float(costs[parts[job]])
                for link in links:
                    if job in problem.asks[link]:
                        for i in range(2):
                            sums[link][i] += turned[link, job][i][parts[job]]
            if not cost < before - 1e-12:
                break
        if cost < least - 1e-12:
            found, least = parts, cost
    return found


def _alike(problem: ShiftProblem) -> dict[int, float]:
    """Return links on which different things are asked, and how many are like each."""
    found: dict[tuple[Any, ...], list[int]] = {}
    for link, asks in problem.asks.items():
        same = tuple((job, ask.tobytes()) for job, ask in asks.items())
        found.setdefault((problem.capacity[link], same), []).append(link)
    return {links[0]: float(len(links)) for links in found.values()}


def _turned(problem: ShiftProblem, job: int, ask: Any) -> Any:
    """Return what is asked under every shift of the job, one in a row: no copies."""
    size = len(ask)
    windows = np.lib.stride_tricks.sliding_window_view(np.tile(ask, 2), size)
    return windows[size : size - problem.room(job) : -1]


def _sums(
    problem: ShiftProblem,
    turned: Mapping[Any, Any],
    parts: Mapping[int, int],
    link: int,
) -> list[Any]:
    """Return what all jobs ask of a link, as it is and blurred."""
    return [
        sum(turned[link, job][i][parts[job]] for job in problem.asks[link])
        for i in range(2)
    ]


def _costs(
    problem: ShiftProblem,
    turned: Mapping[Any, Any],
    parts: Mapping[int, int],
    job: int,
    sums: Mapping[int, list[Any]],
    links: Mapping[int, float],
) -> Any:
    """Take a job out of the sums, and return what it costs there under every shift."""
    total = np.zeros(problem.room(job))
    for link, many in links.items():
        if job not in problem.asks[link]:
            continue
        capacity = problem.capacity[link]
        for i in range(2):
            sums[link][i] = sums[link][i] - turned[link, job][i][parts[job]]
        plain, soft = sums[link]
        ours, ours_soft = turned[link, job]
        over = np.maximum(0.0, ours + (plain - capacity)).mean(axis=1)
        near = (ours_soft @ soft) / len(soft) / capacity
        total += many * (over + _BESIDE * near) / capacity
    return total
