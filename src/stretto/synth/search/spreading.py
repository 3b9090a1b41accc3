"""Schedules of data that may be copied on the way, from every generator that fits."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from fractions import Fraction

from stretto.errors import TopologyError
from stretto.synth.bounds.bound import Bounds
from stretto.synth.budget import Budget
from stretto.synth.clock import OutOfTimeError, SearchClock
from stretto.synth.direct.greedy import greedy
from stretto.synth.direct.trees import book_trees, pack_trees, trees_at_best
from stretto.synth.exact.joint import solve_joint
from stretto.synth.network.symmetry import Symmetry
from stretto.synth.network.without_switches import never_stop
from stretto.synth.schedules.replay import replay
from stretto.synth.schedules.schedule import Demand, TimedSchedule
from stretto.synth.sketch.rules import Sketch

__all__ = ["MOST_LITERALS", "Candidate", "Search", "spreading"]

MOST_LITERALS = 2500
_MOST_TREE_MOVES = 50_000
_FEW_TREES = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate:
    """One candidate: who made it and how long it takes."""

    generator: str
    split: int
    us: Fraction
    bound_us: Fraction = Fraction(0)

    @property
    def gap(self) -> float:
        """Return by how much the time exceeds the bound; 0.04 is 4 %."""
        return float(self.us / self.bound_us) - 1 if self.bound_us else 0.0


@dataclass(slots=True, kw_only=True)
class Search:
    """The state of one search: what is wanted and the best so far."""

    demand: Demand
    symmetry: Symmetry
    budget: Budget
    splits: tuple[int, ...]
    splits_given: bool = False
    sketch: Sketch | None = None
    backwards: bool = False
    """Whether the links are turned round: contributions flow, data do not spread."""
    trees: int = 0
    """So many trees from every root, and nothing else; 0: whatever is best."""
    progress: Callable[[Candidate], None] | None = None
    urgent: bool = True
    """Whether nothing is found yet: then the first way is not given up."""
    least: Fraction | None = None
    """Microseconds of the fastest that was found so far."""
    clock: SearchClock = field(default_factory=lambda: SearchClock(None))
    """What is left of the budget, and what it cut."""

    @property
    def solving(self) -> Budget:
        """Return what a solver may take now."""
        left = self.clock.left if self.clock.limited else None
        return replace(self.budget, whole=left)


def spreading(search: Search, limit: Bounds) -> Iterator[tuple[TimedSchedule, bool]]:
    """Yield schedules for data that may be copied on the way."""
    demand = search.demand
    if search.trees:
        yield from _in_time(search, limit, limit.us(demand.nbytes) * 1000)
        return
    n = len(demand.network.members)
    whole = n == demand.network.num_ranks
    tries = 3 if n <= 64 and whole else 1
    seeds = range(search.budget.seed, search.budget.seed + tries)
    best: tuple[Fraction, TimedSchedule] | None = None
    boxes = len(set(demand.network.box)) > 1
    sketch = search.sketch
    allowed = None
    if sketch is not None:
        allowed = sketch.ways(demand.network, backwards=search.backwards)
    for k in search.splits:
        for once in (True, False) if boxes and n <= 128 else (boxes,):
            for seed in seeds:
                if demand.collective == "broadcast" and (seed > seeds[0] or n > 64):
                    continue  # trees serve better, and nothing folds
                late = f"greedy, split {k}, seed {seed}"
                found = best is not None or not search.urgent
                if found and search.clock.over(late):
                    continue
                cut = replace(demand, split=k, pieces=0)
                try:
                    schedule = greedy(
                        cut,
                        search.symmetry,
                        seed=seed,
                        enter_once=once,
                        allowed=allowed,
                        check=search.clock.check if found else never_stop,
                    )
                except OutOfTimeError:
                    search.clock.skip(late)
                    continue
                except TopologyError:
                    if not once or n > 128:
                        raise
                    continue  # a sketch may leave a box only several ways in
                us = Fraction(0) if n > 64 else replay(schedule).us
                if best is None or us < best[0]:
                    best = (us, schedule)
                yield schedule, False
    if n > 64:
        return  # nothing below serves so many
    if best is None:
        return  # there was no time for it
    if sketch is None:
        yield from _in_time(search, limit, best[0])
    yield from _refined(search, limit, best)


def _in_time(
    search: Search, limit: Bounds, us: Fraction
) -> Iterator[tuple[TimedSchedule, bool]]:
    """Yield tree packings while there is time."""
    try:
        yield from _forests(search, limit, us)
    except OutOfTimeError:
        search.clock.skip("trees")


def _forests(
    search: Search, limit: Bounds, us: Fraction
) -> Iterator[tuple[TimedSchedule, bool]]:
    """Yield tree packings where bandwidth is what counts."""
    demand = search.demand
    network = demand.network
    n = len(network.members)
    far = us > limit.us(demand.nbytes) * Fraction(101, 100)
    many = n > 32 and not search.trees
    if not far or many or len(set(demand.weights)) > 1 or n < network.num_ranks:
        return
    rooted = demand.collective == "broadcast"
    root = demand.root if rooted else None
    check = search.clock.check
    try:
        trees = search.trees or None
        if trees is None and trees_at_best(network, root=root) > (64 if rooted else 8):
            trees = _FEW_TREES  # more take longer to fill than they gain
        forest = pack_trees(network, root=root, trees=trees, check=check)
    except TopologyError:  # an unbalanced switch: others serve
        return
    most = _MOST_TREE_MOVES * (2 if search.trees else 1)
    for pieces in (1, 4, 16, 64, 256) if rooted else (1, 4, 8, 16, 32, 64):
        count = forest.trees * pieces
        if count * n * (1 if rooted else n) > most:
            break
        cut = replace(demand, split=count)
        if rooted:
            cut = replace(demand, split=count // math.gcd(n, count), pieces=count)
        if search.splits_given and cut.split not in search.splits:
            continue
        before = us
        for eager in (1, 8):
            schedule = book_trees(forest, cut, pieces=pieces, eager=eager, check=check)
            us = min(us, replay(schedule).us)
            yield schedule, False
        near = us < limit.us(demand.nbytes) * Fraction(101, 100)
        if near or (pieces >= 8 and us > before * Fraction(995, 1000)):
            break


def _refined(
    search: Search, limit: Bounds, best: tuple[Fraction, TimedSchedule]
) -> Iterator[tuple[TimedSchedule, bool]]:
    """Yield what the joint model makes of the best, when it is small enough."""
    us, hint = best
    sketch = search.sketch
    size = limit.us(search.demand.nbytes)
    leaving = search.demand.network.leaving()
    hops = [
        h
        for r in range(search.demand.network.num_ranks)
        for h in search.demand.network.hops(r, leaving)
    ]
    chunks = hint.demand.split * len(search.symmetry.representatives)
    literals = chunks * len(hops)
    if search.budget.seconds <= 0 or literals > MOST_LITERALS or us == size:
        return
    if search.clock.over("the joint model"):
        return
    found = solve_joint(
        hint.demand,
        search.symmetry,
        limit,
        budget=search.solving,
        hint=hint,
        hops=hops,
        allowed=None
        if sketch is None
        else sketch.ways(search.demand.network, backwards=search.backwards),
    )
    if not found.proved:
        search.clock.over("the joint model")
    if found.schedule is not None:
        yield found.schedule, found.proved
