"""What a scheduler is: it sees who is there, and says who gets which ranks."""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from stretto.network.cassini.groups import JobGroup
from stretto.network.jobs import Job
from stretto.topology import Machine

__all__ = [
    "AllocationPolicy",
    "ClusterScheduler",
    "ClusterView",
    "JobPlaces",
    "JobState",
]


@dataclass(frozen=True, slots=True, kw_only=True)
class JobState:
    """A job that is there, and how far it is."""

    job: Job
    ranks: tuple[int, ...]
    """What it was given; nothing while it waits."""
    done: float
    """Iterations of all its workers."""
    served_ms: float
    """Time of ranks that it has had."""

    @property
    def left_ms(self) -> float:
        """Return how long the rest takes when it is alone, with all its workers."""
        return (self.job.iterations - self.done) * self.job.period_ms


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterView:
    """A cluster at some time; jobs are in the order of their coming."""

    machine: Machine
    now_ms: float
    jobs: tuple[JobState, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class JobPlaces:
    """Who gets which ranks; and, of CASSINI, which groups are to be paced."""

    places: Mapping[str, tuple[int, ...]]
    groups: tuple[JobGroup, ...] = ()
    score: float | None = None
    """The mean score of contended links that is predicted."""


@runtime_checkable
class AllocationPolicy(Protocol):
    """How many workers each job gets: what one file of this folder says."""

    @property
    def name(self) -> str:
        """Return its name."""

    @property
    def lease_ms(self) -> float:
        """Return how often it decides beside when jobs come and end; 0: only then."""

    @property
    def packs(self) -> bool:
        """Return whether a job's ranks shall be near one another, or anywhere."""

    def grants(self, view: ClusterView, draw: random.Random) -> Mapping[str, int]:
        """Return how many workers each job gets; the first are placed first."""


class ClusterScheduler(Protocol):
    """A policy and where its jobs go."""

    name: str
    lease_ms: float

    def decide(self, view: ClusterView, draw: random.Random) -> JobPlaces:
        """Return who gets which ranks."""
