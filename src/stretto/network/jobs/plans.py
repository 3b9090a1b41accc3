"""What a proved plan sends: the collective of a step, taken from the catalogue."""

from __future__ import annotations

import dataclasses
import functools
from typing import Any

from stretto.compiler.lower import lower
from stretto.compiler.plan import Schedule
from stretto.compiler.verify import verify, verify_plan
from stretto.errors import CallError
from stretto.executors import sim
from stretto.network.jobs.job import Job
from stretto.program import algorithms
from stretto.topology import Machine
from stretto.topology.traffic import Flows, Parcel

__all__ = ["resolved"]


class _Seen(Flows[Any]):
    """Flows that note who sent how much to whom."""

    def __init__(self, machine: Machine) -> None:
        super().__init__(machine, compiled=False)
        self._links = machine.links
        self.sizes: dict[tuple[int, int], float] = {}

    def send(self, parcel: Parcel[Any], *, ready_us: float, queue: object) -> Any:
        if parcel.nbytes:
            way = parcel.route.links
            pair = self._links[way[0]].src, self._links[way[-1]].dst
            self.sizes[pair] = self.sizes.get(pair, 0.0) + parcel.nbytes
        return super().send(parcel, ready_us=ready_us, queue=queue)


def resolved(job: Job, machine: Machine) -> Job:
    """Return the job with its steps' plans run, alone, for what they send to whom."""
    if job.workers > machine.num_ranks:
        raise CallError(
            f"job {job.name}, workers: got {job.workers}; want at most the "
            f"{machine.num_ranks} ranks of {machine.name}"
        )
    steps = []
    for step in job.steps:
        made = step
        if "/" in step.collective and job.workers > 1:
            pairs = _sends(step.collective, job.workers, step.mbytes, machine)
            made = dataclasses.replace(step, pairs=pairs)
        steps.append(made)
    return dataclasses.replace(job, steps=tuple(steps))


@functools.lru_cache(maxsize=256)
def _sends(
    name: str, workers: int, mbytes: float, machine: Machine
) -> tuple[tuple[int, int, float], ...]:
    program = verify(algorithms.get(name).build(workers))
    plan = verify_plan(lower(program, Schedule.parse("bulk")), program)
    seen = _Seen(machine)
    nbytes = max(4 * workers * workers, round(mbytes * 1e6))
    sim.simulate(plan, machine, nbytes=nbytes, tile_bytes=1 << 40, traffic=seen)
    return tuple((a, b, size / 1e6) for (a, b), size in sorted(seen.sizes.items()))
