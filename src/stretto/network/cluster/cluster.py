"""A cluster: a machine whose ranks many jobs share."""

from __future__ import annotations

import dataclasses
import math
import random
from collections.abc import Sequence

from stretto.errors import CallError
from stretto.fabric import jit
from stretto.network import schedulers
from stretto.network.cassini.agents import Rehearsal, grids
from stretto.network.cassini.groups import Affinity, fitted
from stretto.network.cluster.result import ClusterRun
from stretto.network.cluster.simulation import ClusterSimulation
from stretto.network.jobs import Job
from stretto.network.jobs.plans import resolved
from stretto.network.schedulers import ClusterScheduler, ClusterView, JobPlaces
from stretto.network.ways import check
from stretto.runtime.pace import Grid
from stretto.topology import Machine, load

__all__ = ["Cluster"]

_REHEARSED = 40
"""Iterations of the slowest job of a group in a rehearsal."""
_TRIES, _MANY = 3, 4000


class Cluster:
    """A machine, by name or as a value, for jobs to run on."""

    def __init__(self, machine: str | Machine) -> None:
        self.machine = load(machine) if isinstance(machine, str) else machine
        self._num_transfers, self._fast = 0, not jit.missing()

    def prepared(self, jobs: Sequence[Job]) -> list[Job]:
        """Return jobs with what their plans send, or raise why they cannot be here."""
        found = [resolved(job, self.machine) for job in jobs]
        names: set[str] = set()
        for job in found:
            check(self.machine, job)
            if job.name in names:
                raise CallError(f"two jobs named {job.name!r}; want one of each")
            names.add(job.name)
        if not found:
            raise CallError("no jobs; want at least one")
        return found

    def run(
        self,
        jobs: Sequence[Job],
        *,
        scheduler: str | ClusterScheduler = "packed",
        seed: int = 0,
        marks: bool = True,
        events: bool = False,
    ) -> ClusterRun:
        """Run jobs to their ends in virtual time."""
        chosen = schedulers.find(scheduler) if isinstance(scheduler, str) else scheduler
        simulation = ClusterSimulation(
            self.machine,
            self.prepared(jobs),
            chosen,
            seed=seed,
            marks=marks,
            rehearse=self.rehearse,
            events=events,
        )
        simulation.run()
        scored = simulation.num_scores
        return ClusterRun(
            machine=self.machine.name,
            scheduler=chosen.name,
            seed=seed,
            jobs={name: one.run for name, one in simulation.jobs.items()},
            links=simulation.flows.counts(),
            ends_ms=simulation.now_us / 1e3,
            predicted=simulation.score_sum / scored if scored else None,
            events=tuple(simulation.events or ()),
            agents=simulation.counts,
        )

    def shifts(self, jobs: Sequence[Job]) -> Affinity:
        """Return how jobs with places of their own fit, and their best shifts."""
        found = self.prepared(jobs)
        for job in found:
            if not job.ranks:
                raise CallError(f"job {job.name}, ranks: got none; want its places")
        return fitted(self.machine, {job: job.ranks for job in found})

    def rehearse(self, asked: Rehearsal) -> float:
        """Return how much slower than alone a group's iterations are, tried out.

        Left alone, several times, from phases that are drawn.
        """
        alone = asked.pad is None
        tries = [self._tried(asked, n) for n in range(_TRIES if alone else 1)]
        return sum(tries) / len(tries)

    def _tried(self, asked: Rehearsal, seed: int) -> float:
        group, draw = asked.group, random.Random(seed)
        periods = [
            job.period_of(len(ranks))
            for job, ranks in zip(group.jobs, group.ranks, strict=True)
        ]
        jobs = [
            dataclasses.replace(
                job,
                workers=len(ranks),
                ranks=ranks,
                iterations=math.ceil(_REHEARSED * max(periods) / period),
                arrives_ms=0.0,
                begins_ms=draw.uniform(0, period),
                jitter=min(1.0, asked.deviations[job.name]),
                noise=math.inf,
            )
            for job, ranks, period in zip(group.jobs, group.ranks, periods, strict=True)
        ]
        agents = {}
        if asked.pad is not None:
            slots = grids(group, asked.pad, 0.0)
            agents = {name: _Paced(grid) for name, grid in slots.items()}
        simulation = ClusterSimulation(
            self.machine,
            jobs,
            _Pinned(),
            seed=seed,
            marks=False,
            only=frozenset(group.fit.problem.capacity),
            agents=agents,
            compiled=True if self._num_transfers > _MANY and self._fast else None,
        )
        simulation.run()
        self._num_transfers += simulation.flows.num_transfers
        slow = [
            one.run.slowdowns[1:] or one.run.slowdowns
            for one in simulation.jobs.values()
        ]
        return sum(sum(s) / len(s) for s in slow) / len(slow)


class _Paced:
    """Who keeps to a grid and learns nothing."""

    def __init__(self, grid: Grid) -> None:
        self._grid = grid

    def start(self, name: str, ready_us: float) -> float:
        return self._grid.start(ready_us)

    def ended(self, name: str, computed: float, slowdown: float) -> None:
        pass


class _Pinned:
    """All jobs where they are to be."""

    name, lease_ms = "pinned", 0.0

    def decide(self, view: ClusterView, draw: object) -> JobPlaces:
        return JobPlaces(places={s.job.name: s.job.ranks for s in view.jobs})
