"""The replay trusts nobody: whatever is missing, doubled or impossible is refused."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction

import pytest

from stretto import topology
from stretto.errors import CallError, PromiseError, UnknownNameError
from stretto.synth import Budget, Demand, bound, from_machine, replay, synthesize

COPYING = ("all_gather", "all_to_all", "broadcast", "gather", "scatter")
COMBINING = ("all_reduce", "reduce", "reduce_scatter")


def found(collective, machine="mi250x", **options):
    """Synthesize something small."""
    network = from_machine(topology.load(machine))
    options = {"splits": (1,), "budget": Budget(seconds=0)} | options
    return synthesize(collective, network, 10**6, **options)


@pytest.mark.parametrize("collective", COPYING + COMBINING)
def test_a_dropped_move_is_caught(collective):
    """Every single move is needed: without it somebody lacks something."""
    schedule = found(collective).schedule

    for i in range(0, len(schedule.moves), max(1, len(schedule.moves) // 6)):
        moves = schedule.moves[:i] + schedule.moves[i + 1 :]
        with pytest.raises(PromiseError, match=r"needs|does not have|are in the sum"):
            replay(replace(schedule, moves=moves))


@pytest.mark.parametrize("collective", ["all_gather", "all_to_all", "scatter"])
def test_a_doubled_move_is_caught(collective):
    """Data that arrive twice waste a link."""
    schedule = found(collective).schedule

    with pytest.raises(PromiseError, match="it is there already"):
        replay(replace(schedule, moves=(*schedule.moves, schedule.moves[-1])))


def test_a_contribution_counted_twice_is_caught():
    """A sum that takes a rank in twice is a wrong sum."""
    schedule = found("reduce_scatter").schedule

    with pytest.raises(PromiseError, match="count twice"):
        replay(replace(schedule, moves=(*schedule.moves, schedule.moves[-1])))


def test_a_way_that_does_not_exist_is_caught():
    """Links must join, and lead from the sender to the receiver."""
    schedule = found("all_gather").schedule
    wrong = schedule.moves[0]._replace(links=schedule.moves[-1].links)

    with pytest.raises(PromiseError, match="want a way over switches"):
        replay(replace(schedule, moves=(wrong, *schedule.moves[1:])))


def test_a_schedule_below_the_bound_is_refused():
    """Published schedules have beaten the bound, by forgetting a rank."""
    result = found("all_gather", "ndv2x2")
    network = result.schedule.demand.network
    limit = bound("all_gather", network)
    slower = replace(
        limit, terms=tuple(replace(t, late=Fraction(1000), need=0) for t in limit.terms)
    )

    with pytest.raises(PromiseError, match="is below the bound"):
        replay(result.schedule, bound=slower)


def test_time_is_exact_on_an_example_worked_by_hand():
    """Four ranks behind a switch each receive three chunks through one port."""
    network = from_machine(topology.load("h200x4"))
    result = found("all_gather", "h200x4")
    rate = network.links[0].rate
    alpha = 2 * network.links[0].alpha

    assert 3 * Fraction(250_000) / (rate * 1000) + alpha == result.us


def test_latency_may_be_told_to_occupy_the_link():
    """TACOS's cost model is slower than ours, by a switch of the replay."""
    schedule = found("all_gather", "ndv2x2").schedule

    assert replay(schedule).us < replay(schedule, alpha_occupies=True).us


def test_demands_that_make_no_sense_say_so():
    """Sizes, weights, roots and names are checked where they are given."""
    network = from_machine(topology.load("dgx1"))
    with pytest.raises(CallError, match="want both at least 1"):
        Demand(collective="all_gather", network=network, nbytes=0)
    with pytest.raises(CallError, match="want one for each of 8 ranks"):
        Demand(collective="all_gather", network=network, nbytes=8, weights=(1, 2))
    with pytest.raises(CallError, match="root=9"):
        Demand(collective="scatter", network=network, nbytes=8, root=9)
    with pytest.raises(CallError, match="pieces=3"):
        Demand(collective="all_gather", network=network, nbytes=8, pieces=3)
    with pytest.raises(UnknownNameError, match="all_reduce"):
        Demand(collective="all_redcue", network=network, nbytes=8)
