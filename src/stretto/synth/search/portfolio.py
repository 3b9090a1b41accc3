"""Ask for an algorithm: try the generators that fit, keep the best, say how good it is.

Every candidate is replayed exactly before it counts. The answer depends on the demand,
the seed and the budget (counted in the solver's deterministic clock), not on the
machine that computes it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from fractions import Fraction

from stretto.errors import CallError, TopologyError
from stretto.program.ir import Program
from stretto.synth.bounds.bound import Bounds, bound
from stretto.synth.bounds.flows import exchange_flow
from stretto.synth.budget import Budget
from stretto.synth.clock import SearchClock
from stretto.synth.direct.exchange import decompose, exchange
from stretto.synth.direct.sketched_exchange import confined_paths
from stretto.synth.emit.file import build, emit, promised
from stretto.synth.general.search import General
from stretto.synth.network.model import Network
from stretto.synth.network.symmetry import Symmetry, find_symmetry, trivial
from stretto.synth.schedules.compose import backwards
from stretto.synth.schedules.schedule import Demand, TimedSchedule
from stretto.synth.search.keeping import Judge, Kept
from stretto.synth.search.reducing import as_asked, both, spread_backwards
from stretto.synth.search.spreading import Candidate, Search, spreading
from stretto.synth.sketch.rules import Sketch

__all__ = ["Candidate", "SearchResult", "synthesize"]


_FOR_THE_SEARCH = 0.95  # of a budget: the rest is to write down what was found
_IF_JUDGED = 0.7  # the rest is to simulate what was found
_FEW = 32  # members: of so many the first special way is quick
_NEAR_BOUND = Fraction(101, 100)


@dataclass(frozen=True, slots=True, kw_only=True)
class SearchResult:
    """The best schedule found, its exact time, and what no schedule can beat."""

    schedule: TimedSchedule
    us: Fraction
    bound: Bounds
    trials: tuple[Candidate, ...]
    budget: Budget
    runs_us: float | None = None
    """What it takes with the machine's costs of an operation, where that was asked."""
    proved: bool = False
    """The joint model proved that nothing symmetric with this split is faster."""
    cut: tuple[str, ...] = ()
    """What the budget left out; with nothing the answer is the same everywhere."""

    interrupted: bool = False
    """Whether Ctrl-C ended the search, and not the budget."""

    @property
    def bound_us(self) -> Fraction:
        """Return the lower bound for this size."""
        return self.bound.us(self.schedule.demand.nbytes)

    @property
    def gap(self) -> float:
        """Return by how much the time exceeds the bound; 0.04 is 4 %."""
        return float(self.us / self.bound_us) - 1 if self.bound_us else 0.0

    @property
    def runs_gap(self) -> float:
        """Return by how much the simulated time exceeds the bound."""
        runs = self.runs_us or 0.0
        return runs / float(self.bound_us) - 1 if self.bound_us else 0.0

    def text(self, name: str) -> str:
        """Return the program as a file in the language."""
        demand = self.schedule.demand
        us, least = float(self.us), float(self.bound_us)
        spent = self.budget.seconds if self.budget.whole is None else self.budget.whole
        facts = (
            f"For {demand.nbytes} bytes on {demand.network.name}: {us:.6g} us in the",
            f"link model; bound {least:.6g} us, gap {self.gap:.2%}.",
            *self._costs(),
            f"Generator: {self.schedule.generator}; split {demand.split},",
            f"seed {self.budget.seed}, budget {spent:g} s.",
            *(f"Left out: {what}." for what in self.cut),
        )
        return emit(self.schedule, name, facts=facts)

    def _costs(self) -> Iterator[str]:
        if self.runs_us is not None:
            yield f"With what operations cost there: {self.runs_us:.6g} us, simulated."
            yield f"This decided; it is {self.runs_gap:.2%} above the bound."

    def program(self, name: str) -> Program:
        """Return the program, built from its own text."""
        return build(self.text(name), self.schedule)


def synthesize(
    collective: str,
    network: Network,
    nbytes: int,
    *,
    splits: tuple[int, ...] = (),
    root: int | None = None,
    weights: tuple[int, ...] = (),
    budget: Budget | None = None,
    sketch: Sketch | None = None,
    trees: int = 0,
    progress: Callable[[Candidate], None] | None = None,
    judge: Judge | None = None,
) -> SearchResult:
    """Return the best schedule that the generators find, with its gap to the bound.

    The fewest moves within 1 % of the best win. `judge` says what a program takes where
    operations cost something; without one the model of links decides. With `trees` only
    packings of so many trees from every root are tried. The first way is always tried,
    further ones as long as `budget.whole` lasts.
    """
    demand = Demand(
        collective=collective,
        network=network,
        nbytes=nbytes,
        root=network.members[0] if root is None else root,
        weights=weights,
    )
    if trees < 0:
        raise CallError(f"synth {collective}: trees={trees}; want 0 or more")
    if root is not None and not demand.rooted:
        raise CallError(f"synth {collective}: root={root}; want none, nobody is one")
    if trees and collective in ("all_to_all", "gather", "scatter"):
        raise CallError(
            f"synth {collective}: trees={trees}; want 0, what only one rank wants"
            " is not copied along a tree"
        )
    # what is proved does not depend on how long is searched
    limit = bound(collective, network, root=demand.root, weights=weights)
    everything = SearchClock(None if budget is None else budget.whole)
    clock = everything.part(_FOR_THE_SEARCH if judge is None else _IF_JUDGED)
    given = splits or (sketch.split if sketch is not None else ())
    search = Search(
        demand=demand,
        symmetry=_symmetry(demand, sketch),
        budget=budget or Budget(),
        splits=given or _splits(demand),
        splits_given=bool(given),
        sketch=sketch,
        trees=trees,
        progress=progress,
        clock=clock,
    )
    return _best(search, limit, judge, everything)


def _best(
    search: Search, limit: Bounds, judge: Judge | None, clock: SearchClock
) -> SearchResult:
    """Return the best of all candidates, each replayed against the bound."""
    general = General(
        search.demand,
        search.symmetry,
        limit,
        clock=search.clock,
        seed=search.budget.seed,
        splits=search.splits if search.splits_given else (),
    )
    kept = Kept(search=search, limit=limit, least=limit.us(search.demand.nbytes))
    try:
        for schedule, done in _in_turn(search, limit, general):
            if kept.take(schedule, done) or search.clock.over("further ways"):
                break
    except KeyboardInterrupt:
        if not kept.front:
            raise
        search.clock.interrupted = True
        search.clock.skip("all that would have been tried later")
    if not kept.front:
        raise _nothing(search, limit)
    fastest = kept.front[-1]
    if general.plans and search.clock.limited and not (kept.done or fastest.proved):
        gap = float(fastest.us / kept.least) - 1
        search.clock.skip(
            f"plans after the first {general.plans} of the general way; {gap:.2%}"
            " above the bound, more time may close it"
        )
    found = kept.chosen(judge, clock)
    schedule = found.schedule if found.runs_us else kept.readable(found)
    return SearchResult(
        schedule=schedule,
        us=found.us if schedule.listed else promised(schedule)[1],
        runs_us=found.runs_us,
        bound=limit,
        trials=tuple(kept.trials),
        budget=search.budget,
        proved=found.proved,
        cut=tuple(search.clock.cut),
        interrupted=search.clock.interrupted,
    )


def _in_turn(
    search: Search, limit: Bounds, general: General
) -> Iterator[tuple[TimedSchedule, bool]]:
    """Yield what the special ways and the general one find, by turns.

    The order does not depend on the clock. Without one the general way ends when it
    has been through its numbers of pieces once.
    """
    special = _candidates(search, limit)
    if search.trees or search.sketch is not None or not general.serves:
        yield from special
        return
    if not search.clock.limited:
        yield from special
        enough = limit.us(search.demand.nbytes) * _NEAR_BOUND
        near = search.least is not None and search.least <= enough
        if not near and search.budget.seconds > 0:
            yield from ((s, False) for s in general.begin())
            yield from ((s, False) for s in general.improve())
            yield from ((s, False) for s in general.go_on(4))
        return
    members = len(search.demand.network.members)
    few = members <= _FEW and search.demand.collective != "all_reduce"
    for schedule in general.begin():
        if search.urgent:
            search.urgent = False
            yield schedule, False
            if few and (quick := next(special, None)) is not None:
                yield quick
            continue
        yield schedule, False
    yield from ((s, False) for s in general.improve())
    yield from ((s, False) for s in general.go_on(2))
    yield from special
    yield from ((s, False) for s in general.go_on(1 << 30))


def _nothing(search: Search, limit: Bounds) -> TopologyError:
    """Return what is said when no generator found anything."""
    trees = search.trees
    want = f" with {trees} trees; want 0, equal parts, all ranks" if trees else ""
    if trees and search.clock.cut:
        want = (
            f" with {trees} trees in {search.budget.whole:g} s; want a larger"
            " budget: 64 ranks take minutes"
        )
    name = limit.asked.network.name
    return TopologyError(f"{name}: no generator serves {limit.asked.collective}{want}")


def _symmetry(demand: Demand, sketch: Sketch | None) -> Symmetry:
    """Return who stands for whom; a sketch must hold, and look the same to all."""
    network = demand.network
    ways = turns = None
    if sketch is not None:
        backwards = demand.collective in ("gather", "reduce", "reduce_scatter")
        way = network.reversed if backwards else network
        origins = (demand.root,) if demand.rooted else network.members
        ways = sketch.check(way, origins, backwards=backwards)
        turns = sketch.turns(network)
    if demand.rooted or len(set(demand.weights)) > 1:
        return trivial(network)
    if turns is not None:
        return turns
    return find_symmetry(network, keep=None if ways is None else ways.preserved)


def _splits(demand: Demand) -> tuple[int, ...]:
    """Return how finely to cut: small machines can afford more pieces."""
    n = len(demand.network.members)
    if n < demand.network.num_ranks and n <= 16:  # pieces on detours overlap
        return tuple(k for k in (1, 2, 4, 8, 16, 32) if n * k <= 100)
    if demand.collective == "all_to_all":
        return (1, 2, 4, 8) if n <= 16 else (1, 2) if n <= 64 else (1,)
    if demand.collective in ("gather", "scatter") and n <= 16:
        return (1, 2, 4, 6, 12, 24)
    return (1, 2, 4) if n <= 32 else (1, 2) if n <= 64 else (1,)


def _candidates(search: Search, limit: Bounds) -> Iterator[tuple[TimedSchedule, bool]]:
    """Yield schedules and whether they are proved best of their kind."""
    collective, network = search.demand.collective, search.demand.network
    match collective:
        case "all_gather" | "broadcast":
            yield from spreading(search, limit)
        case "reduce_scatter" | "reduce":
            other = "all_gather" if collective == "reduce_scatter" else "broadcast"
            for schedule, done in spread_backwards(search, other):
                yield backwards(schedule, as_asked(schedule, search.demand)), done
        case "all_reduce":
            yield from both(search)
        case "all_to_all" | "scatter":
            yield from _exchanged(search, search.demand, limit)
        case _:
            turned = replace(
                search.demand, collective="scatter", network=network.reversed
            )
            for schedule, done in _exchanged(search, turned, limit):
                yield backwards(schedule, as_asked(schedule, search.demand)), done


def _exchanged(
    search: Search, demand: Demand, limit: Bounds
) -> Iterator[tuple[TimedSchedule, bool]]:
    """Yield schedules for data that nobody may copy."""
    network, symmetry = demand.network, search.symmetry
    root = None if demand.collective == "all_to_all" else demand.root
    if root is not None:
        symmetry = replace(symmetry, representatives=(root,))
    if search.sketch is not None:
        gathers = search.demand.collective == "gather"
        ways = search.sketch.ways(network, backwards=gathers)
        paths = confined_paths(ways, symmetry, demand.weights)
    else:
        flow = limit.flow or exchange_flow(
            network, symmetry, root=root, weights=demand.weights
        )
        paths = decompose(network, flow)
    for k in search.splits:
        if k != search.splits[0] and search.clock.over(f"paths, split {k}"):
            return
        for even in (False,) if root is None else (False, True):
            cut = replace(demand, split=k)
            yield exchange(cut, symmetry, paths, even=even), False
