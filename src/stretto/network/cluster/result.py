"""What became of the jobs of a run: iterations, completion, links, and the trace."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from stretto.network.jobs import Job
from stretto.topology.traffic import LinkCounts
from stretto.trace import CallKind, Event, Recording
from stretto.watch import simulated

__all__ = ["ClusterRun", "JobRun", "mean_row"]


@dataclass(slots=True, kw_only=True)
class JobRun:
    """What one job did."""

    job: Job
    began_ms: float = -1.0
    ended_ms: float = -1.0
    iterations_ms: list[float] = field(default_factory=list)
    slowdowns: list[float] = field(default_factory=list)
    """By iteration, how long it took over how long it takes alone."""
    waited_ms: float = 0.0
    """How long it had no ranks, from its coming on."""
    moves: int = 0

    @property
    def takes_ms(self) -> float:
        """Return the time from its coming to its end."""
        return self.ended_ms - self.job.arrives_ms

    @property
    def fairness(self) -> float:
        """Return how long it took over how long it takes alone on an empty cluster."""
        return self.takes_ms / self.job.alone_ms


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterRun:
    """A whole run."""

    machine: str
    scheduler: str
    seed: int
    jobs: Mapping[str, JobRun]
    links: Sequence[LinkCounts]
    ends_ms: float
    predicted: float | None
    """The mean score that CASSINI predicted for contended links, if there were any."""
    events: Sequence[Event] = ()
    agents: Mapping[str, int] = field(default_factory=dict)
    """How often agents chose to pace their jobs, and to let go."""

    @property
    def slowdowns(self) -> Any:
        """Return how much slower than alone iterations were, of all jobs."""
        return np.concatenate([np.array(j.slowdowns) for j in self.jobs.values()])

    @property
    def marks(self) -> float:
        """Return the packets that ECN would have marked, as modelled."""
        return float(sum(link.marks for link in self.links))

    def row(self) -> dict[str, Any]:
        """Return the figures of the run, one line of a table."""
        slow = self.slowdowns
        takes = [j.takes_ms / 1e3 for j in self.jobs.values()]
        times = np.concatenate([np.array(j.iterations_ms) for j in self.jobs.values()])
        rho = [j.fairness for j in self.jobs.values()]
        return {
            "scheduler": self.scheduler,
            "iteration_ms": float(times.mean()),
            "slowdown": float(slow.mean()),
            "p50": float(np.percentile(slow, 50)),
            "p99": float(np.percentile(slow, 99)),
            "completion_s": float(np.mean(takes)),
            "waited_s": float(np.mean([j.waited_ms / 1e3 for j in self.jobs.values()])),
            "fairness_worst": max(rho),
            "marks": round(self.marks),
            "predicted_score": self.predicted,
            "max_queue": round(max((link.max_queue for link in self.links), default=0)),
        }

    def rows(self) -> list[dict[str, Any]]:
        """Return a line for every job."""
        found = []
        for name, run in self.jobs.items():
            slow = np.array(run.slowdowns)
            found.append(
                {
                    "job": name,
                    "iterations": len(slow),
                    "iteration_ms": float(np.mean(run.iterations_ms)),
                    "slowdown": float(slow.mean()),
                    "p99": float(np.percentile(slow, 99)),
                    "completion_s": run.takes_ms / 1e3,
                    "waited_s": run.waited_ms / 1e3,
                    "fairness": run.fairness,
                    "moves": run.moves,
                }
            )
        return found

    def trace(self) -> Recording:
        """Return what the ranks did, for `stretto studio`: one lane a job."""
        kind = CallKind(
            collective="cluster",
            nbytes=0,
            dtype="",
            algorithm=self.scheduler,
            schedule="",
            plan="",
            executor="sim",
            text=f"{len(self.jobs)} jobs under {self.scheduler}",
        )
        ranks = 1 + max((e.rank for e in self.events), default=0)
        return simulated(self.events, kind, ranks, machine=self.machine)


def mean_row(runs: Sequence[ClusterRun]) -> dict[str, Any]:
    """Return the figures of several seeds: means, but all iterations' p50 and p99."""
    rows = [run.row() for run in runs]
    found = dict(rows[0])
    for key in found:
        values = [row[key] for row in rows if isinstance(row[key], int | float)]
        if values:
            found[key] = float(np.mean(values))
    slow = np.concatenate([run.slowdowns for run in runs])
    found["p50"], found["p99"] = (float(np.percentile(slow, p)) for p in (50, 99))
    return found | {"seeds": len(rows)}
