"""Collectives that combine, made of those that spread: backwards, or there and back."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from fractions import Fraction

from stretto.synth.bounds.bound import Bounds, bound
from stretto.synth.exact.joint_reduce import solve_reduce
from stretto.synth.network.model import SwitchPath
from stretto.synth.schedules.compose import backwards, joined
from stretto.synth.schedules.replay import replay
from stretto.synth.schedules.schedule import DataChunk, Demand, TimedSchedule
from stretto.synth.search.spreading import MOST_LITERALS, Search, spreading

__all__ = ["as_asked", "both", "spread_backwards"]


def as_asked(schedule: TimedSchedule, demand: Demand) -> Demand:
    """Return what was asked for, cut as a schedule cuts it."""
    return replace(demand, split=schedule.demand.split, pieces=schedule.demand.pieces)


def spread_backwards(
    search: Search, collective: str
) -> Iterator[tuple[TimedSchedule, bool]]:
    """Yield spreading schedules of the network whose links are turned round."""
    network = search.demand.network.reversed
    demand = replace(search.demand, network=network, collective=collective)
    limit = bound(collective, network, root=demand.root, weights=demand.weights)
    yield from spreading(replace(search, demand=demand, backwards=True), limit)


def both(search: Search, limit: Bounds) -> Iterator[tuple[TimedSchedule, bool]]:
    """Yield reduce_scatter then all_gather, then what one model makes of the best."""
    network = search.demand.network
    spread = replace(search.demand, collective="all_gather")
    halves = bound("all_gather", network, weights=search.demand.weights)
    thirds = search
    if search.clock.limited:  # there, back, and both at once
        budget = replace(search.budget, seconds=search.budget.seconds / 3)
        thirds = replace(search, budget=budget, clock=search.clock.part(0.4))
    there = _best_by_kind(spread_backwards(thirds, "all_gather"))
    thirds = replace(thirds, demand=spread, clock=search.clock.part(0.6))
    back = _best_by_kind(spreading(thirds, halves))
    search = replace(search, budget=thirds.budget)
    best: tuple[Fraction, TimedSchedule] | None = None
    for kind, (_, first) in there.items():
        if kind in back:
            demand = replace(search.demand, split=kind[0])
            scattered = replace(demand, collective="reduce_scatter")
            found = joined(backwards(first, scattered), back[kind][1], demand)
            us = replay(found).us
            best = (us, found) if best is None or us < best[0] else best
            yield found, False
    if best is not None:
        yield from _jointly(search, limit, best)


def _jointly(
    search: Search, limit: Bounds, best: tuple[Fraction, TimedSchedule]
) -> Iterator[tuple[TimedSchedule, bool]]:
    """Yield all_reduce found in one model, when it is small enough."""
    us, hint = best
    network = search.demand.network
    assert hint.symmetry is not None  # generators always say how they folded
    leaving = network.leaving()
    hops = [h for r in range(network.num_ranks) for h in network.hops(r, leaving)]
    chunks = hint.demand.split * len(hint.symmetry.representatives)
    done = us == limit.us(search.demand.nbytes)
    if search.budget.seconds <= 0 or 2 * chunks * len(hops) > MOST_LITERALS or done:
        return
    allowed = None
    if search.clock.over("the joint model"):
        return
    if search.sketch is not None:
        there = search.sketch.ways(network.reversed, backwards=True)
        back = search.sketch.ways(network)

        def allowed(c: DataChunk, h: SwitchPath, combine: bool) -> bool:
            return there.open(c.origin, h.turned) if combine else back.open(c.origin, h)

    found = solve_reduce(
        hint.demand,
        hint.symmetry,
        limit,
        budget=search.solving,
        hint=hint,
        hops=hops,
        allowed=allowed,
    )
    if not found.proved:
        search.clock.over("the joint model")
    if found.schedule is not None:
        yield found.schedule, found.proved


def _best_by_kind(
    found: Iterator[tuple[TimedSchedule, bool]],
) -> dict[tuple[int, int], tuple[Fraction, TimedSchedule]]:
    """Return the fastest schedule for each split and order of symmetry."""
    best: dict[tuple[int, int], tuple[Fraction, TimedSchedule]] = {}
    for schedule, _ in found:
        assert schedule.symmetry is not None  # generators always say how they folded
        kind = schedule.demand.split, schedule.symmetry.order
        us = replay(schedule).us
        if kind not in best or us < best[kind][0]:
            best[kind] = (us, schedule)
    return best
