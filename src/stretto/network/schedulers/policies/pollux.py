"""Goodput: workers go where they add the most progress, and are dealt out anew often.

A job's goodput is how much of its work is done in a second: iterations, times what one
of so many workers is worth (its noise scale says). Allocations are searched for by
evolution from a seed: all jobs' goodput over that of a fair share, their harmonic mean.
"""

from __future__ import annotations

import random
from collections.abc import Sequence

from stretto.network.jobs import Job
from stretto.network.schedulers.scheduler import ClusterView, JobState

__all__ = ["OFFER", "goodput"]

_NOTHING = 0.05
"""What no workers are worth, of a fair share: so that waiting is bad, not fatal."""


def goodput(job: Job, workers: int) -> float:
    """Return the work that is done in a second, in iterations of all workers."""
    return 1e3 * job.work_of(workers) / job.period_of(workers) if workers else 0.0


class Pollux:
    """Pollux: workers by goodput, searched for by evolution."""

    name, packs = "pollux", True

    def __init__(
        self,
        *,
        lease_ms: float = 60_000.0,
        population: int = 24,
        generations: int = 40,
        moving: float = 0.1,
    ) -> None:
        """Set how often it decides, how long it looks, and what a change costs."""
        self.lease_ms = lease_ms
        self._population, self._generations = population, generations
        self._moving = moving

    def grants(self, view: ClusterView, draw: random.Random) -> dict[str, int]:
        """Return the best allocation that evolution finds."""
        jobs, free = view.jobs, view.machine.num_ranks
        fair = max(1, free // max(1, len(jobs)))
        worth = [self._worth(standing, fair) for standing in jobs]
        first = [len(standing.ranks) for standing in jobs]
        known = [_filled(first, jobs, free), _filled([0] * len(jobs), jobs, free)]
        pool = {tuple(one): _fitness(one, worth) for one in known}
        for _ in range(self._generations):
            parents = sorted(pool, key=lambda one: (-pool[one], one))
            parents = parents[: self._population]
            pool = {one: pool[one] for one in parents}
            for _ in range(self._population):
                child = list(draw.choice(parents))
                _mutate(child, jobs, free, draw)
                key = tuple(_filled(child, jobs, free))
                if key not in pool:
                    pool[key] = _fitness(key, worth)
        best = min(pool, key=lambda one: (-pool[one], one))
        order = sorted(range(len(jobs)), key=lambda i: not jobs[i].ranks)
        return {jobs[i].job.name: best[i] for i in order if best[i]}

    def _worth(self, standing: JobState, fair: int) -> list[float]:
        """Return what every number of workers is worth to a job."""
        job, has = standing.job, len(standing.ranks)
        share = goodput(job, min(fair, job.workers))
        found = [_NOTHING]
        for workers in range(1, job.workers + 1):
            moved = self._moving if has and workers != has else 0.0
            found.append(max(_NOTHING, goodput(job, workers) / share * (1 - moved)))
        return found


def _fitness(one: Sequence[int], worth: Sequence[Sequence[float]]) -> float:
    """Return the harmonic mean of what jobs get, of a fair share."""
    return len(one) / sum(1 / worth[i][workers] for i, workers in enumerate(one))


def _limit(standing: JobState) -> int:
    return standing.job.workers


def _filled(one: Sequence[int], jobs: Sequence[JobState], free: int) -> list[int]:
    """Return an allocation in which those who were given none get what is left."""
    found = list(one)
    left = free - sum(found)
    for i, standing in enumerate(jobs):
        if standing.job.ranks:  # who must be somewhere has all its ranks or none
            if 0 < found[i] < _limit(standing):
                left, found[i] = left + found[i], 0
            if not found[i] and _limit(standing) <= left:
                found[i], left = _limit(standing), left - _limit(standing)
        elif not found[i] and left:
            found[i] = min(_limit(standing), left)
            left -= found[i]
    return found


def _mutate(
    one: list[int], jobs: Sequence[JobState], free: int, draw: random.Random
) -> None:
    """Take workers from one job, and give them to another."""
    for _ in range(draw.randint(1, 2)):
        giver, taker = draw.randrange(len(one)), draw.randrange(len(one))
        some = draw.randint(0, one[giver])
        one[giver] -= some
        left = free - sum(one)
        one[taker] += min(left, _limit(jobs[taker]) - one[taker])


OFFER = Pollux
