"""The general way: the best fractions, whole pieces, then a clock for every transfer.

It serves any directed network with capacities and any group of its ranks, whatever is
broken or uneven. Data that spread or sums that flow take trees, what only one rank
wants takes paths; both come from linear programs that know only links, so relays and
ways over any switch count as capacity. Then cuts of more and more pieces are tried, and
the best of them are planned again and again. The order of all this does not depend on
the clock, which only ends it: more time never finds less.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Protocol

from stretto.synth.bounds import Bound
from stretto.synth.clock import Clock, OutOfTimeError
from stretto.synth.forest import Grove
from stretto.synth.routes import Roads
from stretto.synth.schedule import Demand, Move, Schedule
from stretto.synth.symmetry import Symmetry, trivial
from stretto.synth.timing import Search as Timing
from stretto.synth.timing import Yard
from stretto.synth.works import Works

__all__ = ["General"]

_MOST_MOVES = 40_000
_MANY_MOVES = 5_000
_RATES_COUNT = 50  # times the latency: then few pieces need not be tried
_MOST_RANKS = 100
_LADDER = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512, 768)
_FIRST, _LATER = 4, 12
"""Plans for every number of pieces, and for the best ones each time again."""
_NEAR = Fraction(10_002, 10_000)


class Source(Protocol):
    """Says what is to be transferred for a number of pieces."""

    def works(self, split: int, seed: int) -> Works:
        """Return all transfers of a cut into so many pieces a part."""
        ...

    def improve(self) -> bool:
        """Look for better fractions; return whether there may be any."""
        ...


@dataclass(slots=True)
class _Cut:
    """A number of pieces, and the best plan for it so far."""

    demand: Demand
    works: Works
    yard: Yard
    timing: Timing

    def schedule(self) -> Schedule:
        """Return the best plan as a schedule."""
        tick = self.yard.us_per_tick
        moves = sorted(
            (
                Move(start * tick, m.chunk, m.src, m.dst, m.links, m.combine)
                for start, m in zip(
                    self.timing.best.starts, self.works.moves, strict=True
                )
            ),
            key=lambda m: m[:4],
        )
        return Schedule(
            demand=self.demand,
            moves=tuple(moves),
            generator=f"{self.works.name} {self.demand.split}",
            symmetry=trivial(self.demand.network),
            folded=tuple(moves),
            listed=True,
        )


class General:
    """A search that may be left at any time and gone on with."""

    def __init__(
        self,
        demand: Demand,
        symmetry: Symmetry,
        limit: Bound,
        *,
        clock: Clock,
        seed: int,
        splits: tuple[int, ...] = (),
    ) -> None:
        self._demand, self._limit, self._clock = demand, limit, clock
        self._symmetry = symmetry
        self._seed = seed
        self._goal = limit.us(demand.nbytes)
        self._splits = splits or self._ladder()
        self._cuts: list[_Cut] = []
        self._source: Source | None = None
        self._most = _MOST_MOVES
        if clock.limited:
            self._most = min(_MOST_MOVES, int(1500 * clock.left))
        self.plans = 0

    def _ladder(self) -> tuple[int, ...]:
        """Return the numbers of pieces to try: many at once where only rates count."""
        late = max(t.alpha for t in self._limit.terms)
        if self._goal < _RATES_COUNT * late:
            return _LADDER
        members = len(self._demand.network.members)
        rooted = self._demand.collective in ("broadcast", "reduce", "gather", "scatter")
        moves = members if rooted else members * members
        return tuple(k for k in _LADDER if k == 1 or k * moves > _MANY_MOVES / 4)

    @property
    def serves(self) -> bool:
        """Return whether the demand is one that this can hold."""
        network = self._demand.network
        return network.num_ranks <= _MOST_RANKS

    def begin(self) -> Iterator[Schedule]:
        """Yield what numbers of pieces give at first, few pieces first."""
        best: int | None = None
        worse = 0
        try:
            self._source = self._sources()
            for split in self._splits:
                if self._clock.left <= 0 and self._cuts:
                    break
                cut = self._cut(split, self._seed)
                if cut is None:
                    break
                self._cuts.append(cut)
                cut.timing.run(_FIRST, self._clock)
                self.plans += _FIRST
                yield cut.schedule()
                us = cut.timing.best.ends * cut.yard.us_per_tick
                if us <= self._goal * _NEAR:
                    return
                better = best is None or us < best
                worse = 0 if better else worse + 1
                best = us if better else best
                if worse > 4 and len(cut.works.moves) > _MANY_MOVES:
                    break
        except OutOfTimeError:
            pass

    def go_on(self, rounds: int) -> Iterator[Schedule]:
        """Yield better plans of the best numbers of pieces; from there, other cuts."""
        for turn in range(rounds):
            if self._clock.left <= 0 or not self._cuts or self._source is None:
                return
            self._cuts.sort(key=lambda c: c.timing.best.ends * c.yard.us_per_tick)
            best = self._cuts[0].timing.best.ends * self._cuts[0].yard.us_per_tick
            if best <= self._goal * _NEAR:
                return
            cut = self._cuts[turn % min(2, len(self._cuts))]
            try:
                if turn % 6 == 5:
                    if turn % 12 == 5:
                        self._source.improve()
                    again = self._cut(cut.demand.split, self._seed + turn + self.plans)
                    if again is not None:
                        self._cuts.append(again)
                        cut = again
                cut.timing.run(_LATER, self._clock)
            except OutOfTimeError:
                return
            self.plans += _LATER
            if cut.timing.best.ends * cut.yard.us_per_tick < best:
                yield cut.schedule()

    def _sources(self) -> Source:
        if self._demand.collective in ("all_to_all", "scatter", "gather"):
            return Roads(self._demand, self._symmetry, self._clock)
        return Grove(self._demand, self._limit, self._clock)

    def _cut(self, split: int, seed: int) -> _Cut | None:
        assert self._source is not None  # begun
        works = self._source.works(split, seed)
        if len(works.moves) > self._most and self._cuts:
            return None
        yard = Yard.of(self._demand.network, self._demand.nbytes, works.jobs)
        goal = int(self._goal * _NEAR / yard.us_per_tick)
        demand = replace(self._demand, split=split, owners=works.owners)
        return _Cut(demand, works, yard, Timing(yard, seed=seed, goal=goal))
