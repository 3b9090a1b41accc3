"""Jobs at their places, in groups that share links: what an agent a group is told."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from stretto.network.cassini import graph
from stretto.network.cassini.shifts import ShiftProblem, Shifts, best
from stretto.network.jobs import Job
from stretto.network.ways import demands
from stretto.topology import Machine

__all__ = ["Affinity", "JobGroup", "fitted", "problems"]

_QUICK, _FEW = 120, 4
"""Parts of a circle when placements are compared, or jobs are more than a few."""


@dataclass(frozen=True, slots=True, kw_only=True)
class JobGroup:
    """Jobs that hang together by links that are too narrow for all of them."""

    jobs: tuple[Job, ...]
    ranks: tuple[tuple[int, ...], ...]
    fit: Shifts

    @property
    def names(self) -> tuple[str, ...]:
        """Return the names of the jobs."""
        return tuple(job.name for job in self.jobs)

    def slots_ms(self, index: int) -> tuple[float, float]:
        """Return a job's shift and the period of its turns."""
        job = self.fit.problem.jobs[index]
        return self.fit.shifts_ms[job], self.fit.problem.circle.period_ms(index)


@dataclass(frozen=True, slots=True, kw_only=True)
class Affinity:
    """The groups of a placement."""

    groups: tuple[JobGroup, ...]
    score: float
    """The mean of all contended links; 1 where there is none."""


def problems(
    machine: Machine, placed: Mapping[Job, tuple[int, ...]], **bounds: Any
) -> list[ShiftProblem]:
    """Return what jobs at their places ask of links that are too narrow for all.

    Jobs are numbered in their order; jobs without a common circle are left out.
    """
    jobs = list(placed)
    arcs = [demands(machine, job, placed[job]) for job in jobs]
    periods = {i: job.period_of(len(placed[job])) for i, job in enumerate(jobs)}
    capacity = {e: k.bandwidth_gbytes_per_s * 8 for e, k in enumerate(machine.links)}
    on: dict[int, list[int]] = {}
    for i, links in enumerate(arcs):
        for link in links:
            on.setdefault(link, []).append(i)
    narrow = {}
    for link, sharers in on.items():
        most = sum(max(arc[2] for arc in arcs[i][link]) for i in sharers)
        if len(sharers) > 1 and most > capacity[link] * (1 + 1e-9):
            narrow[link] = sharers
    found = [
        ShiftProblem.of(part, periods, dict(enumerate(arcs)), capacity, **bounds)
        for part in graph.components(narrow)
    ]
    return [problem for problem in found if problem is not None]


def fitted(
    machine: Machine, placed: Mapping[Job, tuple[int, ...]], *, quick: bool = False
) -> Affinity:
    """Return the groups of a placement with their best shifts."""
    jobs = list(placed)
    bounds = {"least_parts": _QUICK} if quick or len(jobs) > _FEW else {}
    groups = []
    for problem in problems(machine, placed, **bounds):
        members = tuple(jobs[i] for i in problem.jobs)
        groups.append(
            JobGroup(
                jobs=members,
                ranks=tuple(placed[job] for job in members),
                fit=best(problem, restarts=2 if quick else 5),
            )
        )
    scores = [s for group in groups for s in group.fit.scores.values()]
    return Affinity(
        groups=tuple(groups), score=sum(scores) / len(scores) if scores else 1.0
    )
