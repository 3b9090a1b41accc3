"""Jobs on a cluster in virtual time: they come, are placed, iterate, and end.

A job computes, then sends, step by step; what it sends shares links with all others.
A scheduler is asked when a job comes or ends, and when its lease is over. Jobs move
between two iterations; who cannot have its ranks yet waits for those who leave them.
"""

from __future__ import annotations

import heapq
import math
import random
import zlib
from collections.abc import Iterator, Mapping, Sequence
from enum import IntEnum
from typing import Any

import numpy as np

from stretto.errors import CallError
from stretto.network.cassini.agents import Agent, Rehearse
from stretto.network.cluster.result import JobRun
from stretto.network.jobs import Job, Phase
from stretto.network.schedulers.scheduler import (
    ClusterScheduler,
    ClusterView,
    JobPlaces,
    JobState,
)
from stretto.network.ways import SharedFlow, ways
from stretto.topology import Machine
from stretto.topology.traffic import Flows, Parcel
from stretto.trace import Event

__all__ = ["ClusterSimulation", "factors"]

_LEAST = 0.05
"""Of its usual time computing takes at least, however it varies."""
_BATCH = 512
_MOST_EVENTS = 400_000


class _Kind(IntEnum):
    COMES, COMPUTED, GOES, SENT, RENEW = range(5)


class _Job:
    """A job that has come."""

    __slots__ = (
        "at", "began_us", "computed", "done", "draws", "free_us", "index", "job",
        "left", "phases", "ranks", "run", "sent_us", "served_us", "target", "ways",
    )  # fmt: skip

    def __init__(self, job: Job, index: int, seed: int) -> None:
        self.job, self.index = job, index
        self.run = JobRun(job=job)
        self.ranks: tuple[int, ...] = ()
        self.target: tuple[int, ...] = ()
        self.phases: tuple[Phase, ...] = ()
        self.ways: tuple[tuple[SharedFlow, ...], ...] = ()
        self.at = self.left = 0
        self.began_us = self.sent_us = self.computed = 0.0
        self.done = self.served_us = 0.0
        self.free_us = job.arrives_ms * 1e3
        """Since when it has no ranks."""
        self.draws = factors(job, seed)

    def settle_at(self, machine: Machine, only: frozenset[int] | None) -> None:
        """Take the ranks that were given."""
        self.ranks = self.target
        self.phases = self.job.phases(len(self.ranks))
        self.ways = tuple(ways(machine, phase, self.ranks) for phase in self.phases)
        if only is not None:
            self.ways = tuple(_narrowed(found, only) for found in self.ways)


def factors(job: Job, seed: int) -> Iterator[float]:
    """Yield how much longer than usual each computing takes: the same in every run."""
    if not job.jitter:
        while True:
            yield 1.0
    draw = np.random.default_rng((seed, zlib.crc32(job.name.encode())))
    while True:
        drawn = 1 + job.jitter * draw.standard_normal(_BATCH)
        yield from np.maximum(_LEAST, drawn).tolist()


def _narrowed(
    found: tuple[SharedFlow, ...], only: frozenset[int]
) -> tuple[SharedFlow, ...]:
    """Return ways on some links only; those that then are alike as one."""
    sums: dict[tuple[tuple[int, ...], float], list[SharedFlow]] = {}
    for way in found:
        links = tuple(k for k in way.route.links if k in only)
        if links:
            sums.setdefault((links, way.at_most / way.shares), []).append(way)
    return tuple(
        SharedFlow(
            group[0].route._replace(links=links),
            sum(w.nbytes for w in group),
            sum(w.at_most for w in group),
            sum(w.shares for w in group),
        )
        for (links, _), group in sums.items()
    )


class ClusterSimulation:
    """One run; afterwards `jobs` say what became of each."""

    def __init__(
        self,
        machine: Machine,
        jobs: Sequence[Job],
        scheduler: ClusterScheduler,
        *,
        seed: int = 0,
        marks: bool = True,
        only: frozenset[int] | None = None,
        agents: Mapping[str, Any] | None = None,
        rehearse: Rehearse | None = None,
        events: bool = False,
        compiled: bool | None = None,
    ) -> None:
        """Begin with nobody there.

        `only` are the links that are looked at; `agents` pace jobs by name, from the
        start; `rehearse` tries groups for the agents of schedulers that want some.
        """
        self.machine, self.scheduler = machine, scheduler
        self.flows: Flows[_Job] = Flows(machine, marks=marks, compiled=compiled)
        self.jobs = {job.name: _Job(job, i, seed) for i, job in enumerate(jobs)}
        self.now_us = 0.0
        self.score_sum = self.num_scores = 0.0
        self.events: list[Event] | None = [] if events else None
        self.counts = {"paced": 0, "let_go": 0}
        self._only, self._rehearse = only, rehearse
        self._agents: dict[str, Any] = dict(agents or {})
        self._draw = random.Random(f"scheduler {seed}")
        self._owner: dict[int, _Job] = {}
        self._here: dict[str, _Job] = {}
        self._heap: list[tuple[float, int, _Kind, _Job | None]] = []
        self._age = 0
        self._renewing = math.inf
        for one in self.jobs.values():
            self._at(one.job.arrives_ms * 1e3, _Kind.COMES, one)

    def run(self) -> None:
        """Run to the end of the last job."""
        while True:
            own = self._heap[0][0] if self._heap else math.inf
            flows = self.flows.next_us()
            if own <= flows:
                if math.isinf(own):
                    break
                self.now_us, _, kind, one = heapq.heappop(self._heap)
                self._happens(kind, one)
            else:
                for delivery in self.flows.step():
                    one = delivery.what
                    one.left -= 1
                    if not one.left:
                        self._at(delivery.arrives_us, _Kind.SENT, one)
        if self._here:
            name = next(iter(self._here))
            raise CallError(
                f"job {name}: {self.scheduler.name} never gave it ranks; want a job "
                "that fits"
            )

    def _at(self, when_us: float, kind: _Kind, one: _Job | None) -> None:
        self._age += 1
        heapq.heappush(self._heap, (when_us, self._age, kind, one))

    def _happens(self, kind: _Kind, one: _Job | None) -> None:
        if one is None:
            self._renewing = math.inf
            if self._here:
                self._schedule()
        elif kind is _Kind.COMES:
            self._here[one.job.name] = one
            while self._heap and self._heap[0][0] == self.now_us:
                if self._heap[0][2] is not _Kind.COMES:
                    break
                other = heapq.heappop(self._heap)[3]
                assert other is not None  # only renewals are nobody's
                self._here[other.job.name] = other
            self._schedule()
        elif kind is _Kind.COMPUTED:
            agent = self._agents.get(one.job.name) if one.at == 0 else None
            goes = agent.start(one.job.name, self.now_us) if agent else self.now_us
            if goes > self.now_us:
                self._note(one, "wait", self.now_us, goes, 0)
                self._at(goes, _Kind.GOES, one)
            else:
                self._send(one)
        elif kind is _Kind.GOES:
            self._send(one)
        else:
            self._sent(one)

    # Scheduling.

    def _schedule(self) -> None:
        """Ask the scheduler who gets which ranks, and let jobs go there."""
        decision = self.scheduler.decide(self._view(), self._draw)
        for one in self._here.values():
            one.target = decision.places.get(one.job.name, ())
        if decision.score is not None:
            self.score_sum += decision.score
            self.num_scores += 1
        self._watch(decision)
        self._start()
        if self.scheduler.lease_ms and math.isinf(self._renewing):
            self._renewing = self.now_us + self.scheduler.lease_ms * 1e3
            self._at(self._renewing, _Kind.RENEW, None)

    def _view(self) -> ClusterView:
        return ClusterView(
            machine=self.machine,
            now_ms=self.now_us / 1e3,
            jobs=tuple(
                JobState(
                    job=one.job,
                    ranks=one.target,
                    done=one.done,
                    served_ms=one.served_us / 1e3,
                )
                for one in self._here.values()
            ),
        )

    def _watch(self, decision: JobPlaces) -> None:
        """Give every group an agent; groups that stay the same keep theirs."""
        if self._rehearse is None:
            return
        kept = {}
        for agent in {id(a): a for a in self._agents.values()}.values():
            kept[agent.group.names, agent.group.ranks] = agent
        self._agents = {}
        for group in decision.groups:
            agent = kept.get((group.names, group.ranks))
            if agent is None:
                agent = Agent(group, self._rehearse)
            self._agents |= dict.fromkeys(group.names, agent)

    def _start(self) -> None:
        """Let those begin whose ranks are free."""
        for one in self._here.values():
            if one.ranks or not one.target:
                continue
            if any(rank in self._owner for rank in one.target):
                continue
            one.settle_at(self.machine, self._only)
            self._owner |= dict.fromkeys(one.ranks, one)
            begin = self.now_us
            one.run.waited_ms += (begin - one.free_us) / 1e3
            if one.run.began_ms < 0:
                one.run.began_ms = self.now_us / 1e3
                begin += one.job.begins_ms * 1e3
            else:
                one.run.moves += 1
            self._begin(one, begin)

    def _leave(self, one: _Job) -> None:
        for rank in one.ranks:
            del self._owner[rank]
        one.ranks, one.free_us = (), self.now_us

    # Iterations.

    def _begin(self, one: _Job, when_us: float) -> None:
        one.began_us, one.at, one.computed = when_us, 0, 0.0
        self._compute(one, when_us)

    def _compute(self, one: _Job, when_us: float) -> None:
        took = one.phases[one.at].compute_ms * 1e3
        if took:
            took *= next(one.draws)
        one.computed += took
        self._at(when_us + took, _Kind.COMPUTED, one)

    def _send(self, one: _Job) -> None:
        """Send what a step sends; without links of others it takes its usual time."""
        one.sent_us = self.now_us
        phase, found = one.phases[one.at], one.ways[one.at]
        one.left = len(found)
        if not found:
            self._at(self.now_us + phase.up_ms * 1e3, _Kind.SENT, one)
            return
        for place, way in enumerate(found):
            parcel = Parcel(one, way.route, way.nbytes, way.at_most, way.shares)
            queue = one.index, one.at, place
            self.flows.send(parcel, ready_us=self.now_us, queue=queue)

    def _sent(self, one: _Job) -> None:
        """Go on to the next step, or end the iteration."""
        phase = one.phases[one.at]
        if phase.sends:
            nbytes = round(phase.sends[0].mbytes * 1e6)
            self._note(one, "put", one.sent_us, self.now_us, nbytes)
        one.at += 1
        if one.at < len(one.phases):
            self._compute(one, self.now_us)
            return
        self._count(one)
        if one.done >= one.job.iterations * (1 - 1e-9):
            one.run.ended_ms = self.now_us / 1e3
            del self._here[one.job.name]
            self._leave(one)
            self._agents.pop(one.job.name, None)
            if self._here:
                self._schedule()
        elif one.target != one.ranks:
            self._leave(one)
            self._start()
        else:
            self._begin(one, self.now_us)

    def _count(self, one: _Job) -> None:
        """Note what an iteration took."""
        took = self.now_us - one.began_us
        workers = len(one.ranks)
        alone = one.job.period_of(workers) * 1e3
        one.run.iterations_ms.append(took / 1e3)
        one.run.slowdowns.append(took / alone)
        one.done += one.job.work_of(workers)
        one.served_us += took * workers
        if agent := self._agents.get(one.job.name):
            usual = sum(phase.compute_ms for phase in one.phases) * 1e3
            agent.ended(
                one.job.name, one.computed / usual if usual else 1.0, took / alone
            )

    def _note(
        self, one: _Job, name: str, began_us: float, ended_us: float, nbytes: int
    ) -> None:
        """Record what the workers of a job did, as long as there is room."""
        if self.events is None or len(self.events) >= _MOST_EVENTS:
            return
        for rank in one.ranks:
            self.events.append(
                Event(
                    name=name,
                    kind="wait" if name == "wait" else "move",
                    rank=rank,
                    lane=one.index,
                    t0_us=began_us,
                    t1_us=ended_us,
                    nbytes=nbytes,
                    step=one.at,
                    epoch=len(one.run.iterations_ms),
                )
            )
