"""JigSaw: workers that go back only part of the way, and the holes they leave filled.

With structured partial back-propagation worker i of n goes back through i/n of the
layers, so all but one are done early. A scheduler that deals out ranks iteration by
iteration gives what is left of them to other jobs. That an iteration is worth as much
as a whole one is the authors' claim, and assumed here.
"""

from __future__ import annotations

import heapq
import random
from collections.abc import Sequence
from dataclasses import dataclass

from stretto.errors import CallError


@dataclass(frozen=True, slots=True, kw_only=True)
class PartialJob:
    """A job whose iterations need `workers` ranks at once."""

    name: str
    workers: int
    forward_ms: float
    backward_ms: float
    send_ms: float = 0.0
    """How long all gradients take; who went back less sends less."""

    def __post_init__(self) -> None:
        """Refuse what is no job."""
        times = self.forward_ms, self.backward_ms, self.send_ms
        if self.workers < 1 or min(times) < 0 or not 0 < sum(times) < 1e7:
            raise CallError(
                f"job {self.name}: {self.workers} workers, {times} ms; want at least 1"
                " worker and times that are not below 0, some above"
            )

    def spans_ms(self, *, partial: bool) -> list[float]:
        """Return how long each worker is busy in an iteration, the longest first."""
        n, back = self.workers, self.backward_ms + self.send_ms
        shares = [(n - i) / n if partial else 1.0 for i in range(n)]
        return [self.forward_ms + share * back for share in shares]


def iterations(
    jobs: Sequence[PartialJob], *, ranks: int, ms: float, partial: bool, seed: int = 0
) -> dict[str, int]:
    """Return by job the iterations that end in that time, each dealt ranks anew.

    The job that has had least of what it would have alone goes first, as early as it
    can: the whole of its longest worker is the iteration's time, and a shorter worker
    may be anywhere in it. Each takes the rank that was free for the shortest time.
    """
    for job in jobs:
        if job.workers > ranks:
            raise CallError(
                f"job {job.name}, workers: got {job.workers}; want at most {ranks}"
            )
    free = [0.0] * ranks
    draw = random.Random(f"jigsaw {seed}")
    done = dict.fromkeys((job.name for job in jobs), 0)
    heap = [(0.0, draw.random(), i, 0.0) for i in range(len(jobs))]
    heapq.heapify(heap)
    while heap:
        served, tie, index, ready = heapq.heappop(heap)
        job = jobs[index]
        spans = job.spans_ms(partial=partial)
        slack = [spans[0] - span for span in spans]
        frees = sorted(free)
        begin = max(ready, *(f - late for f, late in zip(frees, slack, strict=False)))
        if begin + spans[0] > ms:
            continue
        taken: set[int] = set()
        for span, late in zip(spans, slack, strict=True):
            fits = [r for r in range(ranks) if free[r] <= begin + late + 1e-9]
            rank = max(set(fits) - taken, key=lambda r: (free[r], -r))
            taken.add(rank)
            free[rank] = max(begin, free[rank]) + span
        done[job.name] += 1
        alone = job.forward_ms + job.backward_ms + job.send_ms
        heapq.heappush(
            heap, (served + alone * job.workers, tie, index, begin + spans[0])
        )
    return done


def efficiency(
    jobs: Sequence[PartialJob], *, ranks: int, ms: float = 60_000.0, seed: int = 0
) -> tuple[float, float]:
    """Return what is done in the time of all ranks: of whole iterations, and partial.

    Work is what whole iterations take, so the second may be above 1.
    """
    found = []
    for partial in (False, True):
        done = iterations(jobs, ranks=ranks, ms=ms, partial=partial, seed=seed)
        work = sum(done[j.name] * sum(j.spans_ms(partial=False)) for j in jobs)
        found.append(work / (ranks * ms))
    return found[0], found[1]


def some_jobs(many: int, *, workers: int, seed: int) -> list[PartialJob]:
    """Return jobs whose backward passes are two thirds of their computing, as usual."""
    draw = random.Random(f"partial {seed}")
    found = []
    for i in range(many):
        ms = draw.uniform(100, 400)
        job = PartialJob(
            name=f"job{i}", workers=workers, forward_ms=ms / 3, backward_ms=2 * ms / 3
        )
        found.append(job)
    return found
