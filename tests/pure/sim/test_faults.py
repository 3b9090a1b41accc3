"""Faults of a machine raise what the runtime would, naming rank, peer and step."""

import re

import pytest

from stretto import topology
from stretto.compiler.lower import lower
from stretto.compiler.plan import Schedule
from stretto.compiler.verify import verify, verify_plan
from stretto.errors import CollectiveTimeout, PeerLost
from stretto.executors.sim import simulate
from stretto.program import algorithms

ARGS = {"nbytes": 1 << 16}
SCHEDULES = (
    "push packets staged",
    "push bulk staged",
    "pull bulk staged",
    "pull bulk zero_copy",
    "push engine zero_copy",
)


@pytest.mark.parametrize("schedule", ["push packets staged", "push bulk staged"])
@pytest.mark.parametrize("dead", [0, 2])
def test_a_dead_rank_is_named_to_who_waits_for_it(small, schedule, dead):
    """Waiting for a signal or for packets, the error says which rank is dead.

    Where the step serves a line of the algorithm, that line is said.
    """
    plan = small.proved("all_reduce/ring", 4, schedule)
    m = topology.load("h200x4").degraded(dead_ranks=[dead])

    after = (dead + 1) % 4
    line = r"all_reduce_ring.py:\d+: " if "packets" in schedule else ""
    with pytest.raises(
        PeerLost,
        match=rf"{line}.*all_reduce/ring: rank {after} waits in step \d+ \(.*\)"
        rf" for rank {dead}, which is dead",
    ):
        simulate(plan, m, **ARGS)


def test_a_rank_without_a_way_out_is_named(small):
    """Its data never come; whoever needs them says whose link is dead."""
    plan = small.proved("all_reduce/ring", 4)
    m = topology.load("h200x4").degraded(dead_links=["1->nvswitch"])

    with pytest.raises(
        CollectiveTimeout, match=r"rank 2 waits in step 2 .* for rank 1, which has no w"
    ):
        simulate(plan, m, **ARGS)


def test_who_waits_for_a_signal_without_a_way_says_so(small):
    """A put that can leave is no help when the peer's word cannot come back."""
    plan = small.proved("all_gather/one_shot", 2, "pull bulk zero_copy")
    m = small.full(2).degraded(dead_links=["1->0"])

    with pytest.raises(
        CollectiveTimeout, match=r"rank 0 waits .* for rank 1, which ha"
    ):
        simulate(plan, m, **ARGS)


def test_a_link_too_slow_for_the_deadline_times_out(small):
    """The rank that waits names the one that is still sending."""
    plan = small.proved("all_reduce/ring", 4, "push bulk staged")
    m = topology.load("h200x4").degraded(slow={"2->nvswitch": 1e6})

    with pytest.raises(
        CollectiveTimeout,
        match=r"rank 3 waits in step 2 \(wait r2.0 n=1\) for rank 2, not come after",
    ):
        simulate(plan, m, deadline_us=500.0, **ARGS)


@pytest.mark.parametrize("schedule", SCHEDULES)
@pytest.mark.parametrize("name", algorithms.names())
def test_whatever_keeps_a_call_from_its_end_is_named(small, name, schedule):
    """No message says that a call takes less than its deadline, and none is silent."""
    if algorithms.get(name).refuses(2):
        return
    params = {"pairs": ((0, 1), (1, 0))} if name.startswith("permute") else {}
    program = verify(algorithms.get(name).build(2, **params))
    plan = verify_plan(lower(program, Schedule.parse(schedule)), program)
    far = [small.link(0, 1, latency=1e9), small.link(1, 0, latency=1e9)]
    whole = small.full(2)
    for machine in (
        small.machine(2, far),
        whole.degraded(slow={"0->1": 1e9, "1->0": 1e9}),
        whole.degraded(dead_links=["0->1", "1->0"]),
        whole.degraded(dead_links=["1->0"]),
    ):
        try:
            found = simulate(plan, machine, nbytes=1 << 20, deadline_us=500.0)
        except CollectiveTimeout as e:
            takes = re.search(r"takes ([0-9.]+) us; the deadline is 500", str(e))
            stuck = re.search(r"rank [01] (waits|is still) in step", str(e))
            assert stuck if takes is None else float(takes[1]) > 500
        else:
            assert found.time_us <= 500


def test_a_long_call_of_many_tiles_times_out_as_a_whole(small):
    """Tiles that were not run count, too."""
    plan = small.proved("all_reduce/ring", 4, "push bulk staged")
    m = topology.load("h200x4")

    with pytest.raises(
        CollectiveTimeout, match=r"takes [0-9.]+ us; the deadline is 10000"
    ):
        simulate(plan, m, nbytes=1 << 30, tile_bytes=1 << 16, deadline_us=1e4)


def test_deaths_elsewhere_do_no_harm(small):
    """A dead rank that the plan does not use is nobody's business."""
    plan = small.proved("all_reduce/ring", 3)
    m = topology.load("h200x8").degraded(dead_ranks=[7], dead_links=["6->nvswitch"])

    assert simulate(plan, m, **ARGS).time_us > 0
