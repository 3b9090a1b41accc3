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
from typing import TypeAlias

from stretto.synth.bounds.bound import Bounds
from stretto.synth.clock import OutOfTimeError, SearchClock
from stretto.synth.general.path_source import PathSource
from stretto.synth.general.transfers import TimedTransfers
from stretto.synth.general.tree_source import LATENCY_COUNTS, TreeSource
from stretto.synth.network.symmetry import Symmetry, trivial
from stretto.synth.planning.jobs import JobTable
from stretto.synth.planning.timing import Search as Timing
from stretto.synth.schedules.schedule import Demand, TimedSchedule

__all__ = ["General"]

Source: TypeAlias = PathSource | TreeSource
"""Says what is to be transferred for a number of pieces."""

_MOST_MOVES = 64_000
_MANY_MOVES = 5_000
_TO_WRITE = 6e-5  # seconds that each move takes to be written and proved
_LITTLE = 2000  # moves that cost as much as all that does not depend on their number
_MOST_RANKS = 100
_LADDER = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512, 768)
_FIRST, _LATER, _KEPT = 6, 24, 2
"""Plans for every number of pieces, for the best ones each time again; best ones."""
_WAITING = 1.02
"""What is lost, of the time, where transfers wait for few others."""
_NEAR = Fraction(10_002, 10_000)
_BETTER = Fraction(995, 1000)
"""What is worth to be written down at once; the best always is, in the end."""


@dataclass(slots=True)
class _Cut:
    """A number of pieces, and the best plan for it so far."""

    demand: Demand
    transfers: TimedTransfers
    jobs: JobTable
    timing: Timing
    variant: int

    @property
    def us(self) -> Fraction:
        """Return when the best plan ends, rounded up."""
        return self.timing.best.ends * self.jobs.us_per_tick

    @property
    def to_write(self) -> float:
        """Return the seconds that it takes to be written and proved."""
        return _TO_WRITE * len(self.transfers.moves)

    def schedule(self) -> TimedSchedule:
        """Return the best plan as a schedule."""
        tick = self.jobs.us_per_tick
        starts, planned = self.timing.best.starts.tolist(), self.transfers.moves
        order = sorted(range(len(starts)), key=lambda i: (starts[i], planned[i][1:4]))
        moves = tuple(planned[i]._replace(start=starts[i] * tick) for i in order)
        return TimedSchedule(
            demand=self.demand,
            moves=moves,
            generator=f"{self.transfers.name} {self.demand.split}",
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
        limit: Bounds,
        *,
        clock: SearchClock,
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
        self.plans = self._turn = 0
        self._last = 0.0, 1, 0
        """Seconds that the last cut took, its pieces and its moves."""

    def _ladder(self) -> tuple[int, ...]:
        """Return the numbers of pieces to try: many at once where only rates count."""
        if self._goal < LATENCY_COUNTS * self._limit.us(1):
            return _LADDER
        members = len(self._demand.network.members)
        moves = members if self._demand.rooted else members * members
        return tuple(k for k in _LADDER if k == 1 or k * moves > _MANY_MOVES / 4)

    @property
    def serves(self) -> bool:
        """Return whether the demand is one that this can hold."""
        network = self._demand.network
        return network.num_ranks <= _MOST_RANKS

    def begin(self) -> Iterator[TimedSchedule]:
        """Yield what numbers of pieces give at first."""
        try:
            self._source = self._sources()
            patience = 1 if self._source.open else 4
            yield from self._climb(self._first(), patience, 0)
        except OutOfTimeError:
            pass
        yield from self._best_offer()

    def _first(self) -> tuple[int, ...]:
        """Return the numbers of pieces to begin with: few, where trees get better."""
        assert self._source is not None  # begun
        if not self._source.open:
            return self._splits
        return tuple(dict.fromkeys(self._splits[:1] + self._coarse()))

    def _coarse(self) -> tuple[int, ...]:
        """Return the most pieces that are still planned at once, if any are."""
        moves = len(self._demand.network.members) ** 2
        return tuple(k for k in self._splits if k * moves < _MANY_MOVES)[-1:]

    def improve(self) -> Iterator[TimedSchedule]:
        """Yield what they give with few partners, then with better fractions."""
        chosen = -1
        try:
            for turn in range(4):
                if self._source is None or self._is_done():
                    break
                better = turn or self._source.first_better
                if better and not self._source.improve():
                    break
                variant = self._source.choose()
                if variant == chosen:  # others may have done better
                    variant = self._best().variant
                yield from self._climb(self._finer(), 2, variant)
                if variant != chosen:
                    yield from self._others(variant)
                chosen = variant
            if chosen < 0 and self._source is not None and not self._is_done():
                yield from self._others(self._source.choose())
        except OutOfTimeError:
            pass
        yield from self._best_offer()

    def _finer(self) -> tuple[int, ...]:
        """Return the numbers of pieces from the best one on."""
        best = self._best().demand.split
        return tuple(k for k in self._splits if k >= best)

    def _others(self, tried: int) -> Iterator[TimedSchedule]:
        """Yield what other kinds give whose fractions promise more than was reached.

        Those with fewer partners miss the bound by more, but lose less to waiting.
        """
        assert self._source is not None  # begun
        kinds = range(self._source.variants)
        for variant in sorted(kinds, key=self._source.promise):
            missed = float(self._best().us / self._goal)
            if variant != tried and self._source.promise(variant) * _WAITING < missed:
                yield from self._climb(self._coarse() + self._finer()[:1], 0, variant)

    def _climb(
        self, splits: tuple[int, ...], patience: int, variant: int
    ) -> Iterator[TimedSchedule]:
        """Yield the best of more and more pieces, until some were not better."""
        best: Fraction | None = None
        worse = 0
        for split in splits:
            cut = self._cut(split, self._seed, variant)
            if cut is None:
                break
            self._keep(cut)
            # one plan there will be, whatever the clock says
            cut.timing.run(_FIRST, self._clock, cut.to_write)
            self.plans += _FIRST
            yield from self._offer(cut, _BETTER)
            if cut.us <= self._goal * _NEAR:
                break
            better = best is None or cut.us < best
            worse = 0 if better else worse + 1
            best = cut.us if better else best
            if worse > patience and len(cut.transfers.moves) > _MANY_MOVES:
                break

    def go_on(self, rounds: int) -> Iterator[TimedSchedule]:
        """Yield better plans of the best cuts; from there, other cuts and fractions."""
        for _ in range(rounds):
            if self._source is None or self._is_done() or self._is_late(self._cuts[0]):
                break
            self._turn += 1
            turn = self._turn
            cut = self._cuts[turn % min(2, len(self._cuts))]
            try:
                if turn % 3 == 2:
                    if turn % 6 == 5:
                        self._source.improve()
                    again = self._other(turn // 3)
                    if again is not None:
                        self._keep(again)
                        cut = again
                cut.timing.run(_LATER, self._clock, cut.to_write)
                self.plans += _LATER
                yield from self._offer(cut, _BETTER)
            except OutOfTimeError:
                break
        yield from self._best_offer()

    def _other(self, count: int) -> _Cut | None:
        """Return a cut like the best ones: other trees, another seed, more pieces."""
        assert self._source is not None  # begun
        like = self._cuts[count % min(3, len(self._cuts))]
        split, variant = like.demand.split, like.variant
        finer = [k for k in self._splits if k > split]
        if count % 2 and self._source.variants > 1:
            variant = (variant + 1 + count // 2) % self._source.variants
        elif count % 4 == 2 and finer:
            split = finer[0]
        return self._cut(split, self._seed + count, variant)

    def _keep(self, cut: _Cut) -> None:
        """Keep a cut with the best ones; the rest are forgotten."""
        self._cuts.sort(key=lambda c: c.us)
        del self._cuts[_KEPT:]
        self._cuts.append(cut)

    def _best(self) -> _Cut:
        return min(self._cuts, key=lambda c: c.us)

    def _is_done(self) -> bool:
        """Return whether nothing is to be done; put the best cuts first."""
        self._cuts.sort(key=lambda c: c.us)
        return not self._cuts or self._cuts[0].us <= self._goal * _NEAR

    def _offer(self, cut: _Cut, factor: Fraction) -> Iterator[TimedSchedule]:
        """Yield a plan that is better than what was yielded before, by a factor."""
        if self._told is None or cut.us < self._told * factor:
            self._told = cut.us
            yield cut.schedule()

    def _best_offer(self) -> Iterator[TimedSchedule]:
        """Yield the best plan, if it was not."""
        if self._cuts:
            yield from self._offer(self._best(), Fraction(1))

    def _is_late(self, cut: _Cut) -> bool:
        """Return whether what is left is needed to write the plan down."""
        return self._clock.left <= cut.to_write

    def _needs(self, split: int) -> float:
        """Return about how many seconds a cut needs, and its first plan."""
        took, pieces, moves = self._last
        return took * (split * moves / pieces + _LITTLE) / (moves + _LITTLE)

    def _sources(self) -> Source:
        if self._demand.collective in ("all_to_all", "scatter", "gather"):
            limit = self._limit
            return PathSource(self._demand, self._symmetry, self._clock, limit.flow)
        return TreeSource(self._demand, self._symmetry, self._limit, self._clock)

    def _cut(self, split: int, seed: int, variant: int = 0) -> _Cut | None:
        assert self._source is not None  # begun
        reserve = self._cuts[0].to_write if self._cuts else 0.0
        if self._cuts and self._clock.left <= self._needs(split) + reserve:
            raise OutOfTimeError
        self._source.prepare(split, variant)
        begun = self._clock.left
        transfers = self._source.transfers(split, seed, variant)
        spent = _TO_WRITE * len(transfers.moves)
        late = self._clock.limited and self._clock.left < spent
        if self._cuts and (len(transfers.moves) > _MOST_MOVES or late):
            return None
        jobs = JobTable.of(self._demand.network, self._demand.nbytes, transfers.jobs)
        transfers.jobs.clear()  # the table knows them
        goal = int(self._goal * _NEAR / jobs.us_per_tick)
        demand = replace(self._demand, split=split, owners=transfers.owners)
        timing = Timing(jobs, seed=seed, goal=goal)
        if self._clock.limited:
            self._last = (begun - self._clock.left, split, len(transfers.moves))
        return _Cut(demand, transfers, jobs, timing, variant)
