"""What is kept of all that was found, and which of it wins: what runs fastest."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from fractions import Fraction
from typing import TypeAlias

from stretto.program.ir import Program
from stretto.synth.bounds.bound import Bounds
from stretto.synth.clock import SearchClock
from stretto.synth.emit.file import build, emit
from stretto.synth.schedules.repeating import in_waves
from stretto.synth.schedules.replay import replay
from stretto.synth.schedules.schedule import TimedSchedule
from stretto.synth.search.spreading import Candidate, Search

__all__ = ["Found", "Judge", "Kept"]

Judge: TypeAlias = Callable[[Program], float]
"""Says how many microseconds a program takes."""

_AS_GOOD = Fraction(101, 100)
_MANY_ROWS = 1000  # nobody reads more
_AT_BOUND = Fraction(10_003, 10_000)
_WORSE = 1.5  # than the best that was judged: more pieces are not asked about
_MOST_JUDGED = 8000  # moves: a simulation of more takes longer than it is worth


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """A schedule, what it takes, and whether that was proved best of its kind."""

    us: Fraction
    schedule: TimedSchedule
    proved: bool
    runs_us: float | None = None
    """What it takes where operations cost something."""

    @property
    def length(self) -> int:
        """Return how many moves it makes, and rows that its file has."""
        rows = self.schedule.waves or self.schedule.folded
        return len(self.schedule.moves) + len(rows)


@dataclass(slots=True, kw_only=True)
class Kept:
    """The best so far of every length, and what was tried."""

    search: Search
    limit: Bounds
    least: Fraction
    """What the bound says of this size."""
    front: list[Found] = field(default_factory=list)
    """Each is faster than all shorter ones; the fastest is the last."""
    trials: list[Candidate] = field(default_factory=list)

    @property
    def done(self) -> bool:
        """Return whether nothing can be better, but for dust."""
        best = self.front[-1] if self.front else None
        return best is not None and (best.us <= self.least * _AT_BOUND)

    def take(self, schedule: TimedSchedule, proved: bool) -> bool:
        """Replay a schedule, keep it if it is good; return whether that will do."""
        new = Found(
            us=replay(schedule, bound=self.limit).us, schedule=schedule, proved=proved
        )
        trial = Candidate(
            generator=schedule.generator,
            split=schedule.demand.split,
            us=new.us,
            bound_us=self.least,
        )
        self.trials.append(trial)
        fastest = not self.front or new.us < self.front[-1].us
        if not any(f.us <= new.us and f.length <= new.length for f in self.front):
            kept = [f for f in self.front if f.us < new.us or f.length < new.length]
            self.front = sorted((*kept, new), key=lambda f: f.length)
        if fastest:
            self.search.least = new.us
            if self.search.progress is not None:
                self.search.progress(trial)
        return self.done

    def chosen(self, judge: Judge | None, clock: SearchClock) -> Found:
        """Return what makes the fewest moves within 1 % of the best."""
        front, judged = self.front, list[Found]()
        if judge is not None:
            try:
                judged.extend(_judged(front, judge, clock))
            except KeyboardInterrupt:
                self.search.clock.interrupted = True
            front = judged or front
        best = min(f.runs_us or f.us for f in front) * _AS_GOOD
        return min(
            (f for f in front if (f.runs_us or f.us) <= best), key=lambda f: f.length
        )

    def readable(self, found: Found) -> TimedSchedule:
        """Return what was chosen, as a loop if one of twice as many moves is."""
        most = self.front[-1].us * _AS_GOOD
        few = 2 * found.length if len(found.schedule.folded) > _MANY_ROWS else 0
        for one in (found, *(f for f in self.front if found.length < f.length <= few)):
            looped = in_waves(one.schedule, most)
            if looped.waves:
                return looped
        return found.schedule


def _judged(front: list[Found], judge: Judge, clock: SearchClock) -> Iterator[Found]:
    """Yield what was found with what it takes to run, the fewest moves first.

    Sums are written in one line, and move by move. More pieces cost more operations;
    when that has cost more than it gained, still more are not asked about.
    """
    best = math.inf
    for found in front:
        late = best < math.inf and clock.over(f"judging {found.length // 2} moves")
        if late or (best < math.inf and found.length > 2 * _MOST_JUDGED):
            return
        here = math.inf
        made = found.schedule
        looped = made.demand.combines and not made.meetings()
        for listed in (False, True) if looped else (made.listed,):
            schedule = replace(made, listed=listed, loose=not listed)
            us = judge(build(emit(schedule, "judged"), schedule))
            here = min(here, us)
            yield replace(found, schedule=schedule, runs_us=us)
        if here > best * _WORSE:
            return
        best = min(best, here)
