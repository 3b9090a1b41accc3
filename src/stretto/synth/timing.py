"""When every transfer starts: a list schedule that serves the fullest links first.

A job is one transfer with the links that it takes, and the jobs that must have arrived
before it. At every moment, of the jobs that could start, the one goes first whose links
have the most still to carry, or behind which the longest chain waits. What the clock
leaves is spent on other weights of the two, on chance, and on planning from the end:
links turned round in time are links, too. All times are whole ticks, so that nothing is
rounded.
"""

from __future__ import annotations

import heapq
import math
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from fractions import Fraction

from stretto.synth.clock import Clock
from stretto.synth.model import Network, microseconds

__all__ = ["Job", "Plan", "Search", "Yard"]

_FIRST = (
    *((0.5, 0.5, 0), (0.0, 1.0, 0), (0.5, 0.5, 1), (0.0, 1.0, 1)),
    *((1.0, 0.0, 0), (1.0, 0.0, 1), (1.0, 1.0, 0), (1.0, 1.0, 1)),
    *((2.0, 0.5, 0), (2.0, 0.5, 1), (0.0, 4.0, 0), (0.0, 4.0, 1)),
)
"""Weights of waves and of full links, and whether time runs backwards."""
_ROUGH = 1 << 20
"""Ticks for the longest transfer: starts are planned in them, replay is exact."""


@dataclass(frozen=True, slots=True)
class Job:
    """A transfer of `share` of the vector over links, after other jobs."""

    links: tuple[int, ...]
    share: Fraction
    after: tuple[int, ...]
    """Numbers of jobs that must have arrived at the source."""
    wave: float = 0.0
    """Which part of its owner's pieces go before its own."""


@dataclass(slots=True)
class Plan:
    """Starts of all jobs, in ticks, and when the last one arrives."""

    starts: list[int]
    ends: int


@dataclass(slots=True)
class Yard:
    """Jobs, and what they take of their links."""

    takes: list[tuple[int, ...]]
    """Ticks that a job takes of each of its links."""
    links: list[tuple[int, ...]]
    delay: list[int]
    """Ticks from a job's start to its arrival."""
    before: list[tuple[int, ...]]
    behind: list[list[int]]
    num_links: int
    us_per_tick: Fraction
    load: list[int] = field(default_factory=list)
    wave: list[float] = field(default_factory=list)
    way: list[int] = field(default_factory=list)
    """Which set of links, by number; jobs of one wait in one queue."""
    num_ways: int = 0

    @classmethod
    def of(cls, network: Network, nbytes: int, jobs: Sequence[Job]) -> Yard:
        """Return the yard of some jobs."""
        longest = max(
            microseconds(nbytes * j.share, min(network.links[e].rate for e in j.links))
            for j in jobs
        )
        tick = longest / _ROUGH
        known: dict[tuple[tuple[int, ...], Fraction], tuple[tuple[int, ...], int]] = {}
        takes, delay = [], []
        ways: dict[tuple[int, ...], int] = {}
        for j in jobs:
            key = (j.links, j.share)
            if key not in known:
                times = tuple(
                    math.ceil(
                        microseconds(nbytes * j.share, network.links[e].rate) / tick
                    )
                    for e in j.links
                )
                alpha = sum((network.links[e].alpha for e in j.links), Fraction(0))
                known[key] = times, max(times) + math.ceil(alpha / tick)
                ways.setdefault(j.links, len(ways))
            takes.append(known[key][0])
            delay.append(known[key][1])
        behind: list[list[int]] = [[] for _ in jobs]
        for i, j in enumerate(jobs):
            for b in j.after:
                behind[b].append(i)
        yard = cls(
            takes=takes,
            links=[j.links for j in jobs],
            delay=delay,
            before=[j.after for j in jobs],
            behind=behind,
            num_links=len(network.links),
            us_per_tick=tick,
            wave=[j.wave for j in jobs],
            way=[ways[j.links] for j in jobs],
            num_ways=len(ways),
        )
        yard.load = yard._loads()
        return yard

    def _loads(self) -> list[int]:
        load = [0] * self.num_links
        for links, takes in zip(self.links, self.takes, strict=True):
            for e, t in zip(links, takes, strict=True):
                load[e] += t
        return load

    @property
    def turned(self) -> Yard:
        """Return the yard with time running backwards."""
        return Yard(
            takes=self.takes,
            links=self.links,
            delay=self.delay,
            before=[tuple(b) for b in self.behind],
            behind=[list(b) for b in self.before],
            num_links=self.num_links,
            us_per_tick=self.us_per_tick,
            load=self.load,
            wave=[1 - w for w in self.wave],
            way=self.way,
            num_ways=self.num_ways,
        )

    def order(self) -> list[int]:
        """Return the jobs so that each comes after those before it."""
        left = [len(b) for b in self.before]
        queue = [i for i, n in enumerate(left) if not n]
        for i in queue:
            for d in self.behind[i]:
                left[d] -= 1
                if not left[d]:
                    queue.append(d)
        return queue

    def tails(self) -> list[int]:
        """Return the ticks from each job's start until all behind it have arrived."""
        tail = [0] * len(self.links)
        for i in reversed(self.order()):
            tail[i] = self.delay[i] + max((tail[d] for d in self.behind[i]), default=0)
        return tail


def dispatch(
    yard: Yard,
    urgency: Sequence[float],
    weight: float,
    check: Callable[[], None],
) -> Plan:
    """Return the plan in which nothing waits that could start.

    Of what could, the largest of `weight` x what its fullest link still has to carry +
    its urgency goes first.
    """
    run = _Dispatch(yard, urgency, weight)
    while run.arrivals or run.freed:
        asked = run.ask()
        if len(asked) > 1:
            asked = run.fullest_first(asked)
        for way in asked:
            if run.start(way) and not run.done & 1023:
                check()
    return Plan(run.starts, run.ends)


class _Dispatch:
    """A yard while its jobs run: what has arrived, what waits, what is free."""

    def __init__(self, yard: Yard, urgency: Sequence[float], weight: float) -> None:
        self.yard, self.urgency, self.weight = yard, urgency, weight
        self.left = list(yard.load)
        self.free = [0] * yard.num_links
        self.waits = [len(b) for b in yard.before]
        self.ready = [0] * len(yard.links)
        self.queues: list[list[tuple[float, int]]] = [[] for _ in range(yard.num_ways)]
        self.links_of_way: list[tuple[int, ...]] = [()] * yard.num_ways
        for i, w in enumerate(yard.way):
            self.links_of_way[w] = yard.links[i]
        self.parked: list[list[int]] = [[] for _ in range(yard.num_links)]
        self.idle = [True] * yard.num_ways
        """Ways that are not parked at a link."""
        self.arrivals = [(0, i) for i, n in enumerate(self.waits) if not n]
        heapq.heapify(self.arrivals)
        self.freed: list[tuple[int, int]] = []
        self.starts = [0] * len(yard.links)
        self.now = self.ends = self.done = 0

    def ask(self) -> list[int]:
        """Go on to the next moment; return the ways that may start something."""
        arrivals, freed, pop = self.arrivals, self.freed, heapq.heappop
        now = arrivals[0][0] if arrivals else freed[0][0]
        if freed and freed[0][0] < now:
            now = freed[0][0]
        self.now = now
        asked: list[int] = []
        while arrivals and arrivals[0][0] == now:
            i = pop(arrivals)[1]
            w = self.yard.way[i]
            heapq.heappush(self.queues[w], (-self.urgency[i], i))
            if self.idle[w]:
                self.idle[w] = False
                asked.append(w)
        while freed and freed[0][0] == now:
            e = pop(freed)[1]
            if self.free[e] == now and self.parked[e]:
                asked += self.parked[e]
                self.parked[e] = []
        return asked

    def fullest_first(self, asked: list[int]) -> list[int]:
        """Return ways in the order in which they may start."""
        left, queues, weight = self.left, self.queues, self.weight
        keyed = []
        for w in asked:
            fullest = 0
            for e in self.links_of_way[w]:
                if left[e] > fullest:
                    fullest = left[e]
            keyed.append((queues[w][0][0] - weight * fullest, w))
        keyed.sort()
        return [w for _, w in keyed]

    def start(self, w: int) -> bool:
        """Start the most urgent job of a way; False: a link is busy, it is parked."""
        now, free, yard, push = self.now, self.free, self.yard, heapq.heappush
        for e in self.links_of_way[w]:
            if free[e] > now:
                self.parked[e].append(w)
                return False
        i = heapq.heappop(self.queues[w])[1]
        self.starts[i] = now
        last = until = -1
        for e, t in zip(self.links_of_way[w], yard.takes[i], strict=True):
            free[e] = now + t
            self.left[e] -= t
            push(self.freed, (now + t, e))
            if t > until:
                until, last = t, e
        arrives = now + yard.delay[i]
        self.ends = max(self.ends, arrives)
        waits, ready = self.waits, self.ready
        for d in yard.behind[i]:
            waits[d] -= 1
            if ready[d] < arrives:
                ready[d] = arrives
            if not waits[d]:
                push(self.arrivals, (ready[d], d))
        if self.queues[w]:
            self.parked[last].append(w)
        else:
            self.idle[w] = True
        self.done += 1
        return True


class Search:
    """The best plan for a yard; looking for better ones may go on at any time."""

    def __init__(self, yard: Yard, *, seed: int, goal: int) -> None:
        self._ways = (yard, yard.turned)
        self._tails = [y.tails() for y in self._ways]
        self._full = max(yard.load)
        self._goal = goal
        self._chance = random.Random(seed)
        self._kinds: list[tuple[int, float, float, int]] = []
        """How good the first plans were, and what made them."""
        self._plan: Plan | None = None
        self.tried = 0

    @property
    def best(self) -> Plan:
        """Return the best plan so far."""
        assert self._plan is not None  # the first one is made whatever the clock says
        return self._plan

    def run(self, rounds: int, clock: Clock) -> None:
        """Try so many plans, or fewer when the clock ends it; one there will be."""
        for _ in range(rounds):
            if self._plan is not None and (
                self._plan.ends <= self._goal or clock.left <= 0
            ):
                return
            check = _no_check if self._plan is None else clock.check
            self.tried += 1
            if self.tried <= len(_FIRST):
                waves, weight, turned = _FIRST[self.tried - 1]
                ends = self._try(
                    turned, self._urgency(turned, waves, 0.0), weight, check
                )
                self._kinds.append((ends, waves, weight, turned))
                self._kinds.sort()
            elif self._chance.random() < 0.5:
                self._varied(check)
            else:
                self._shaken(check)

    def _try(
        self,
        turned: int,
        urgency: Sequence[float],
        weight: float,
        check: Callable[[], None],
    ) -> int:
        plan = dispatch(self._ways[turned], urgency, weight, check)
        yard = self._ways[0]
        if turned:
            starts = [
                plan.ends - s - d for s, d in zip(plan.starts, yard.delay, strict=True)
            ]
            plan = compact(yard, Plan(starts, plan.ends))
        if self._plan is None or plan.ends < self._plan.ends:
            self._plan = plan
        return plan.ends

    def _urgency(self, turned: int, waves: float, noise: float) -> list[float]:
        """Return how urgent jobs are: what waits behind them, and their wave."""
        slack, rough = waves * self._full, noise * self._full
        both = zip(self._tails[turned], self._ways[turned].wave, strict=True)
        if not rough:
            return [t - slack * w for t, w in both]
        return [t - slack * w + self._chance.random() * rough for t, w in both]

    def _varied(self, check: Callable[[], None]) -> None:
        """Try one of the kinds that were good, with a little chance."""
        chance = self._chance
        _, waves, weight, turned = self._kinds[
            min(self.tried % 5, len(self._kinds) - 1)
        ]
        waves *= chance.choice((0.7, 1.0, 1.0, 1.4))
        weight *= chance.choice((0.5, 1.0, 1.0, 2.0))
        noise = chance.choice((0.005, 0.02, 0.1))
        self._try(turned, self._urgency(turned, waves, noise), weight, check)

    def _shaken(self, check: Callable[[], None]) -> None:
        """Try the order of the best plan, from either end, shaken a little."""
        chance, best = self._chance, self.best
        turned = self.tried % 2
        rough = chance.choice((0.0, 0.003, 0.01, 0.05)) * best.ends
        if turned:
            both = zip(best.starts, self._ways[0].delay, strict=True)
            urgency = [s + d + chance.random() * rough for s, d in both]
        else:
            urgency = [best.ends - s + chance.random() * rough for s in best.starts]
        self._try(turned, urgency, chance.choice((0.0, 0.0, 0.2, 1.0)), check)


def _no_check() -> None:
    """Let the first plan be made whatever the clock says."""


def compact(yard: Yard, plan: Plan) -> Plan:
    """Return the plan with every job as early as its links' order allows."""
    order = sorted(range(len(plan.starts)), key=lambda i: plan.starts[i])
    free = [0] * yard.num_links
    starts = [0] * len(order)
    ready = [0] * len(order)
    ends = 0
    for i in order:
        start = ready[i]
        for e in yard.links[i]:
            if free[e] > start:
                start = free[e]
        starts[i] = start
        for e, t in zip(yard.links[i], yard.takes[i], strict=True):
            free[e] = start + t
        arrives = start + yard.delay[i]
        ends = max(ends, arrives)
        for d in yard.behind[i]:
            if ready[d] < arrives:
                ready[d] = arrives
    return Plan(starts, ends)
