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
from stretto.synth.planning.compiled import Functions, compiled
from stretto.synth.planning.dispatch import compacted, dispatched, tailed
from stretto.synth.planning.jobs import JobArrays, JobTable

__all__ = ["Search", "Timetable"]

_PATIENCE = ((0.0, 0.0), (0.1, 0.1), (0.0, 1.0), (0.25, 0.25))
"""What is waited for links: by any way, and by those over the fullest."""
_FIRST = (
    *((0.5, 0.5, 0, 0), (0.0, 1.0, 0, 1), (0.5, 0.5, 1, 1), (0.0, 1.0, 1, 2)),
    *((0.0, 0.4, 0, 0), (0.0, 0.4, 1, 0), (1.0, 0.0, 0, 1), (1.0, 0.0, 1, 3)),
    *((0.25, 0.5, 0, 0), (0.25, 0.5, 1, 0), (1.0, 1.0, 0, 3), (1.0, 1.0, 1, 0)),
    *((2.0, 0.5, 0, 0), (2.0, 0.5, 1, 1), (0.0, 4.0, 0, 1), (0.0, 4.0, 1, 2)),
)
"""Weights of waves and of full links, whether time runs backwards, and which patience
is the first."""
_FULL = 0.9


@dataclass(slots=True)
class Timetable:
    """Starts of all jobs, in ticks, and when the last one arrives."""

    starts: Any
    ends: int


class _Planner:
    """Makes plans of one jobs, from either end."""

    def __init__(self, jobs: JobTable) -> None:
        self._jobs = jobs.flat
        self._known: dict[tuple[int, bool], JobArrays] = {(0, False): jobs.flat}

    def plan(
        self, turned: int, urgency: Any, weight: float, patience: Any
    ) -> Timetable:
        """Return the plan in which nothing waits that could start."""
        count = len(urgency)
        order: Any = np.argsort(-urgency, kind="stable")
        ranks: Any = np.empty(count, dtype=np.int64)
        ranks[order] = np.arange(count)
        plain = _fast.functions[0] is dispatched
        out = np.zeros(count, dtype=np.int64)
        given: tuple[Any, ...] = urgency, ranks, order, patience, out
        if plain:
            given = tuple(x.tolist() for x in given)
        f, (urgency, ranks, order, patience, starts) = self._seen(turned, plain), given
        begun = clock.now()
        ends = _fast.functions[0](
            *(urgency, ranks, order, weight, patience),
            *(f.way, f.way_at, f.way_links, f.take_at, f.takes, f.delay),
            *(f.waits.copy(), f.behind_at, f.behind, f.load.copy(), starts),
        )
        if plain:
            _fast.spent += clock.now() - begun
        starts = np.asarray(starts)
        if not turned:
            return Timetable(starts, int(ends))
        return self.compact(ends - starts - self._jobs.delay)

    def tails(self, turned: int) -> Any:
        """Return the ticks from each job's start until all behind it have arrived."""
        run = _fast.functions[2]
        f = self._seen(turned, run is tailed)
        return np.asarray(run(f.delay, f.behind_at, f.behind, f.waits.copy()))

    def compact(self, starts: Any) -> Timetable:
        """Return the plan with every job as early as its links' order allows."""
        order: Any = np.argsort(starts, kind="stable")
        run = _fast.functions[1]
        f, out = self._seen(0, run is compacted), order * 0
        if run is compacted:
            out, order = out.tolist(), order.tolist()
        ends = run(
            *(order, f.way, f.way_at, f.way_links, f.take_at, f.takes, f.delay),
            *(f.behind_at, f.behind, len(f.load), out),
        )
        return Timetable(np.asarray(out), int(ends))

    def _seen(self, turned: int, plain: bool) -> JobArrays:
        """Return the jobs from either end, as arrays or lists; each is made once."""
        if (turned, plain) not in self._known:
            jobs = self._jobs if not plain else self._seen(turned, False)
            made = jobs.lists() if plain else jobs.turned()
            self._known[turned, plain] = made
        return self._known[turned, plain]


class _Fast:
    """Which functions make plans: compiled ones once they have cost enough."""

    def __init__(self) -> None:
        self.functions: Functions = (dispatched, compacted, tailed)
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


def _narrow_ways(jobs: JobArrays) -> Any:
    """Return which ways go over one of the fullest links."""
    full = np.maximum.reduceat(jobs.load[jobs.way_links], jobs.way_at[:-1])
    return full > _FULL * jobs.load.max()


class Search:
    """The best plan for a jobs; looking for better ones may go on at any time."""

    def __init__(self, jobs: JobTable, *, seed: int, goal: int) -> None:
        self._planner = _Planner(jobs)
        self._tails = (self._planner.tails(0), self._planner.tails(1))
        self._waves = (jobs.wave, 1 - jobs.wave)
        self._delay = jobs.flat.delay
        self._full = int(jobs.flat.load.max())
        self._narrow = _narrow_ways(jobs.flat)
        self._goal = goal
        self._chance = np.random.default_rng(seed)
        self._kinds: list[tuple[int, float, float, int, int]] = []
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
                waves, weight, turned, wait = _FIRST[self.tried - 1]
                urgency = self._urgency(turned, waves, 0.0)
                plan = self._try(turned, urgency, weight, wait)
                self._kinds.append((plan.ends, waves, weight, turned, wait))
                self._kinds.sort()
            elif self._chance.random() < (0.5 if self.tried < _YOUNG else 0.1):
                self._varied()
            else:
                self._shaken()
            if clock.limited:
                self._took = left - clock.left

    def _try(self, turned: int, urgency: Any, weight: float, wait: int) -> Timetable:
        usual, full = _PATIENCE[wait % len(_PATIENCE)]
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
        at = min(self.tried % 5, len(self._kinds) - 1)
        _, waves, weight, turned, wait = self._kinds[at]
        waves *= chance.choice((0.7, 1.0, 1.0, 1.4))
        weight *= chance.choice((0.5, 1.0, 1.0, 2.0))
        noise = chance.choice((0.005, 0.02, 0.1))
        wait += int(chance.choice((0, 0, 1, 2, 3)))
        self._try(turned, self._urgency(turned, waves, noise), weight, wait)

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
        plan = self._try(turned, urgency, weight, self.tried // 2)
        if plan.ends <= max(old.ends, self.best.ends * _WORSE):
            self._from = plan


_YOUNG, _WORSE = 48, 1.002
