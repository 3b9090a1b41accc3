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
from stretto.synth.schedule import Demand, Schedule
from stretto.synth.symmetry import Symmetry, trivial
from stretto.synth.timing import Search as Timing
from stretto.synth.works import Works
from stretto.synth.yard import Yard

__all__ = ["General"]

_MOST_MOVES = 40_000
_MANY_MOVES = 5_000
_TO_WRITE = 1.5e-4  # seconds that each move takes to be written and proved
_RATES_COUNT = 50  # times the latency: then few pieces need not be tried
_MOST_RANKS = 100
_LADDER = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512, 768)
_FIRST, _LATER = 4, 12
"""Plans for every number of pieces, and for the best ones each time again."""
_NEAR = Fraction(10_002, 10_000)
_BETTER = Fraction(995, 1000)
"""What is worth to be written down at once; the best always is, in the end."""


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

    @property
    def us(self) -> Fraction:
        """Return when the best plan ends, rounded up."""
        return self.timing.best.ends * self.yard.us_per_tick

    def schedule(self) -> Schedule:
        """Return the best plan as a schedule."""
        tick = self.yard.us_per_tick
        starts, works = self.timing.best.starts.tolist(), self.works.moves
        order = sorted(range(len(starts)), key=lambda i: (starts[i], works[i][1:4]))
        moves = tuple(works[i]._replace(start=starts[i] * tick) for i in order)
        return Schedule(
            demand=self.demand,
            moves=moves,
            generator=f"{self.works.name} {self.demand.split}",
            symmetry=trivial(self.demand.network),
            folded=moves,
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
        self._told: Fraction | None = None
        """When the best plan ends that was yielded."""
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
        best: Fraction | None = None
        worse = 0
        try:
            self._source = self._sources()
            for split in self._splits:
                cut = self._cut(split, self._seed)
                if cut is None:
                    break
                self._cuts.append(
                    cut
                )  # one plan there will be, whatever the clock says
                cut.timing.run(_FIRST, self._clock)
                self.plans += _FIRST
                yield from self._offer(cut, _BETTER)
                if cut.us <= self._goal * _NEAR:
                    break
                better = best is None or cut.us < best
                worse = 0 if better else worse + 1
                best = cut.us if better else best
                if worse > 4 and len(cut.works.moves) > _MANY_MOVES:
                    break
        except OutOfTimeError:
            pass
        yield from self._best_offer()

    def go_on(self, rounds: int) -> Iterator[Schedule]:
        """Yield better plans of the best numbers of pieces; from there, other cuts."""
        for turn in range(rounds):
            if not self._cuts or self._source is None or self._is_late(self._cuts[0]):
                break
            self._cuts.sort(key=lambda c: c.us)
            if self._cuts[0].us <= self._goal * _NEAR:
                break
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
                break
            self.plans += _LATER
            yield from self._offer(cut, _BETTER)
        yield from self._best_offer()

    def _offer(self, cut: _Cut, factor: Fraction) -> Iterator[Schedule]:
        """Yield a plan that is better than what was yielded before, by a factor."""
        if self._told is None or cut.us < self._told * factor:
            self._told = cut.us
            yield cut.schedule()

    def _best_offer(self) -> Iterator[Schedule]:
        """Yield the best plan, if it was not."""
        if self._cuts:
            yield from self._offer(min(self._cuts, key=lambda c: c.us), Fraction(1))

    def _is_late(self, cut: _Cut) -> bool:
        """Return whether what is left is needed to write the plan down."""
        return self._clock.left <= _TO_WRITE * len(cut.works.moves)

    def _sources(self) -> Source:
        if self._demand.collective in ("all_to_all", "scatter", "gather"):
            return Roads(self._demand, self._symmetry, self._clock)
        return Grove(self._demand, self._limit, self._clock)

    def _cut(self, split: int, seed: int) -> _Cut | None:
        assert self._source is not None  # begun
        works = self._source.works(split, seed)
        spent = _TO_WRITE * len(works.moves)
        late = self._clock.limited and self._clock.left < spent
        if self._cuts and (len(works.moves) > _MOST_MOVES or late):
            return None
        yard = Yard.of(self._demand.network, self._demand.nbytes, works.jobs)
        goal = int(self._goal * _NEAR / yard.us_per_tick)
        demand = replace(self._demand, split=split, owners=works.owners)
        return _Cut(demand, works, yard, Timing(yard, seed=seed, goal=goal))
