"""When every transfer starts: a list schedule that serves the fullest links first.

A job is one transfer with the links that it takes, and the jobs that must have arrived
before it. At every moment, of the jobs that could start, the one goes first whose links
have the most still to carry, or behind which the longest chain waits. What the clock
leaves is spent on other weights of the two, on chance, and on planning from the end:
links turned round in time are links, too.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from stretto.synth import clock
from stretto.synth.clock import SearchClock
from stretto.synth.planning.compiled import compiled
from stretto.synth.planning.dispatch import compacted, dispatched
from stretto.synth.planning.jobs import JobArrays, JobTable

__all__ = ["Search", "Timetable"]

_FIRST = (
    *((0.5, 0.5, 0), (0.0, 1.0, 0), (0.5, 0.5, 1), (0.0, 1.0, 1)),
    *((1.0, 0.0, 0), (1.0, 0.0, 1), (1.0, 1.0, 0), (1.0, 1.0, 1)),
    *((2.0, 0.5, 0), (2.0, 0.5, 1), (0.0, 4.0, 0), (0.0, 4.0, 1)),
)
"""Weights of waves and of full links, and whether time runs backwards."""
_PATIENCE = ((0.0, 0.0), (0.1, 0.1), (0.0, 1.0), (0.1, 0.1))
"""What is waited for links, in turn: by any way, and by those over the fullest."""
_FULL = 0.9


@dataclass(slots=True)
class Timetable:
    """Starts of all jobs, in ticks, and when the last one arrives."""

    starts: Any
    ends: int


class _Planner:
    """Makes plans of one jobs, from either end."""

    def __init__(self, jobs: JobTable) -> None:
        self._ways = (jobs.flat, jobs.flat.turned())
        self._lists: tuple[JobArrays, JobArrays] | None = None

    def plan(
        self, turned: int, urgency: Any, weight: float, patience: Any
    ) -> Timetable:
        """Return the plan in which nothing waits that could start."""
        count = len(urgency)
        order = np.argsort(-urgency, kind="stable")
        ranks = np.empty(count, dtype=np.int64)
        ranks[order] = np.arange(count)
        starts = np.zeros(count, dtype=np.int64)
        run, _ = _fast.functions
        if run is dispatched:
            self._lists = self._lists or (self._ways[0].lists(), self._ways[1].lists())
            f = self._lists[turned]
            out = [0] * count
            begun = clock.now()
            ends = run(
                *(urgency.tolist(), ranks.tolist(), order.tolist()),
                *(weight, patience.tolist()),
                *(f.way, f.way_at, f.way_links, f.take_at, f.takes, f.delay),
                *(list(f.waits), f.behind_at, f.behind, list(f.load), out),
            )
            _fast.spent += clock.now() - begun
            starts = np.array(out)
        else:
            f = self._ways[turned]
            ends = run(
                *(urgency, ranks, order, weight, patience),
                *(f.way, f.way_at, f.way_links, f.take_at, f.takes, f.delay),
                *(f.waits.copy(), f.behind_at, f.behind, f.load.copy(), starts),
            )
        if not turned:
            return Timetable(starts, int(ends))
        return self._compact(ends - starts - self._ways[0].delay)

    def _compact(self, starts: Any) -> Timetable:
        """Return the plan with every job as early as its links' order allows."""
        order = np.argsort(starts, kind="stable")
        _, run = _fast.functions
        f: JobArrays = self._ways[0]
        out: Any = np.zeros(len(starts), dtype=np.int64)
        if run is compacted:
            assert self._lists is not None  # made by whoever planned
            f, out, order = self._lists[0], out.tolist(), order.tolist()
        ends = run(
            *(order, f.way, f.way_at, f.way_links, f.take_at, f.takes, f.delay),
            *(f.behind_at, f.behind, len(f.load), out),
        )
        return Timetable(np.asarray(out), int(ends))


class _Fast:
    """Which functions make plans: compiled ones once they have cost enough."""

    def __init__(self) -> None:
        self.functions: tuple[Any, Any] = (dispatched, compacted)
        self.spent = 0.0
        self._asked = False

    def consider(self, left: float) -> None:
        """Compile when that pays: plans took a while, and time is left."""
        if not self._asked and self.spent > _WORTH and left > _TO_COMPILE:
            self._asked = True
            self.functions = compiled() or self.functions


_WORTH, _TO_COMPILE = 1.5, 6.0
"""Seconds that plans have cost before they are compiled, and that must be left."""
_fast = _Fast()


class Search:
    """The best plan for a jobs; looking for better ones may go on at any time."""

    def __init__(self, jobs: JobTable, *, seed: int, goal: int) -> None:
        self._planner = _Planner(jobs)
        self._tails = (jobs.flat.tails(), jobs.flat.turned().tails())
        self._waves = (jobs.wave, 1 - jobs.wave)
        self._delay = jobs.flat.delay
        self._full = int(jobs.flat.load.max())
        full = np.maximum.reduceat(
            jobs.flat.load[jobs.flat.way_links], jobs.flat.way_at[:-1]
        )
        self._narrow = full > _FULL * self._full
        """Whether a way goes over one of the fullest links."""
        self._goal = goal
        self._chance = np.random.default_rng(seed)
        self._kinds: list[tuple[int, float, float, int]] = []
        """How good the first plans were, and what made them."""
        self._plan: Timetable | None = None
        self._from: Timetable | None = None
        """The plan that is shaken: not much worse than the best."""
        self.tried = 0
        self._took = 0.0
        """Seconds that a plan takes to be made."""

    @property
    def best(self) -> Timetable:
        """Return the best plan so far."""
        assert self._plan is not None  # the first one is made whatever the clock says
        return self._plan

    def run(self, rounds: int, clock: SearchClock, reserve: float = 0.0) -> None:
        """Try so many plans, or fewer: none is begun that would end too late.

        The last seconds, a reserve, are not for plans.
        """
        for _ in range(rounds):
            if self._plan is not None and (
                self._plan.ends <= self._goal or clock.left <= self._took + reserve
            ):
                return
            _fast.consider(clock.left)
            left = clock.left
            self.tried += 1
            if self.tried <= len(_FIRST):
                waves, weight, turned = _FIRST[self.tried - 1]
                plan = self._try(turned, self._urgency(turned, waves, 0.0), weight)
                self._kinds.append((plan.ends, waves, weight, turned))
                self._kinds.sort()
            elif self._chance.random() < (0.5 if self.tried < _YOUNG else 0.1):
                self._varied()
            else:
                self._shaken()
            if clock.limited:
                self._took = left - clock.left

    def _try(self, turned: int, urgency: Any, weight: float) -> Timetable:
        usual, full = _PATIENCE[self.tried // 2 % len(_PATIENCE)]
        patience = np.where(self._narrow, full, usual)
        plan = self._planner.plan(turned, urgency, weight, patience)
        if self._plan is None or plan.ends < self._plan.ends:
            self._plan = self._from = plan
        return plan

    def _urgency(self, turned: int, waves: float, noise: float) -> Any:
        """Return how urgent jobs are: what waits behind them, and their wave."""
        urgency = self._tails[turned] - waves * self._full * self._waves[turned]
        if noise:
            urgency += self._chance.random(len(urgency)) * (noise * self._full)
        return urgency

    def _varied(self) -> None:
        """Try one of the kinds that were good, with a little chance."""
        chance = self._chance
        _, waves, weight, turned = self._kinds[
            min(self.tried % 5, len(self._kinds) - 1)
        ]
        waves *= chance.choice((0.7, 1.0, 1.0, 1.4))
        weight *= chance.choice((0.5, 1.0, 1.0, 2.0))
        noise = chance.choice((0.005, 0.02, 0.1))
        self._try(turned, self._urgency(turned, waves, noise), weight)

    def _shaken(self) -> None:
        """Try the order of a good plan, from either end, shaken a little."""
        chance, old = self._chance, self._from or self.best
        turned = self.tried % 2
        rough = chance.choice((0.0, 0.001, 0.003, 0.01, 0.03)) * old.ends
        shake = chance.random(len(old.starts)) * rough
        if turned:
            urgency = old.starts + self._delay + shake
        else:
            urgency = old.ends - old.starts + shake
        weight = float(chance.choice((0.0, 0.0, 0.2, 1.0)))
        plan = self._try(turned, urgency, weight)
        if plan.ends <= max(old.ends, self.best.ends * _WORSE):
            self._from = plan


_YOUNG, _WORSE = 48, 1.002
