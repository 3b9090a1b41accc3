"""What no scheduler can beat: every job alone, at once, on a cluster of its own."""

from __future__ import annotations

from collections.abc import Sequence

from stretto.network.cluster.result import ClusterRun, JobRun
from stretto.network.cluster.simulation import factors
from stretto.network.jobs import Job

__all__ = ["ideal"]


def ideal(jobs: Sequence[Job], *, machine: str = "", seed: int = 0) -> ClusterRun:
    """Return the run of jobs that are never in one another's way.

    Their computing varies as it does in other runs of that seed.
    """
    runs = {}
    for job in jobs:
        draws, run, at = factors(job, seed), JobRun(job=job), job.arrives_ms
        run.began_ms = at
        phases, alone = job.phases(job.workers), job.period_ms
        for _ in range(job.iterations):
            took = 0.0
            for phase in phases:
                factor = next(draws) if phase.compute_ms else 1.0
                took += phase.compute_ms * factor + phase.up_ms
            run.iterations_ms.append(took)
            run.slowdowns.append(took / alone)
            at += took
        run.ended_ms = at
        runs[job.name] = run
    return ClusterRun(
        machine=machine,
        scheduler="ideal",
        seed=seed,
        jobs=runs,
        links=(),
        ends_ms=max(run.ended_ms for run in runs.values()),
        predicted=1.0,
    )
