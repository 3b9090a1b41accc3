"""Collectives that combine, made of those that spread: backwards, or there and back."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from fractions import Fraction

from stretto.synth.bounds.bound import bound
from stretto.synth.schedules.compose import backwards, joined
from stretto.synth.schedules.replay import replay
from stretto.synth.schedules.schedule import Demand, TimedSchedule
from stretto.synth.search.spreading import Search, spreading

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


def both(search: Search) -> Iterator[tuple[TimedSchedule, bool]]:
    """Yield reduce_scatter then all_gather."""
    network = search.demand.network
    spread = replace(search.demand, collective="all_gather")
    halves = bound("all_gather", network, weights=search.demand.weights)
    half = search
    if search.clock.limited:
        budget = replace(search.budget, seconds=search.budget.seconds / 2)
        half = replace(search, budget=budget, clock=search.clock.part(0.5))
    there = _best_by_kind(spread_backwards(half, "all_gather"))
    half = replace(half, demand=spread, clock=search.clock.part(1.0))
    back = _best_by_kind(spreading(half, halves))
    for kind, (_, first) in there.items():
        if kind in back:
            demand = replace(search.demand, split=kind[0])
            scattered = replace(demand, collective="reduce_scatter")
            found = joined(backwards(first, scattered), back[kind][1], demand)
            yield found, False


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
