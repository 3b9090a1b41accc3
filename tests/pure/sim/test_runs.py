"""Every algorithm runs on real machines, within bounds, and says what it did."""

import itertools

import pytest
from tests.nightly import at_night

from stretto import topology
from stretto.compiler.plan import Wait
from stretto.errors import CallError, PeerLost
from stretto.executors import sim
from stretto.executors.sim import simulate
from stretto.program import algorithms
from stretto.trace import Recorder


@pytest.mark.parametrize("name", algorithms.names())
def test_every_algorithm_runs_on_every_kind_of_machine(small, name):
    """Behind a switch, over relays, on a torus, between hosts: all come to an end."""
    one = algorithms.get(name)
    for num_ranks, machine in [(4, "h200x4"), (8, "dgx1"), (4, "torus2x2")]:
        if one.refuses(num_ranks):
            continue
        for schedule in ("push packets staged", "pull bulk zero_copy"):
            plan = small.proved(name, num_ranks, schedule)
            found = simulate(plan, topology.load(machine), nbytes=1 << 16)
            assert found.time_us > 0


@pytest.mark.parametrize("machine", ["h200x8", "dgx1", "dgx2", "mi250x", "torus4x4"])
def test_no_all_gather_beats_its_lower_bound(small, machine):
    """Every rank must take in the parts of all others through its own links."""
    m = topology.load(machine)
    n = m.num_ranks
    into = [
        sum(k.bandwidth_gbytes_per_s for k in m.links if k.dst == r) for r in range(n)
    ]
    nbytes = 1 << 22
    bound = nbytes * (n - 1) / n / (min(into) * 1e3)
    for one in algorithms.of("all_gather", n):
        plan = small.proved(one.name, n, "push bulk staged blocks=64")
        assert simulate(plan, m, nbytes=nbytes).time_us >= bound


def test_the_critical_path_leads_from_the_start_to_the_end(small):
    """Its pieces join, and it passes through every rank of a ring."""
    plan = small.proved("all_reduce/ring", 4, "push bulk staged")
    found = simulate(plan, topology.load("h200x4"), nbytes=1 << 16)

    path = found.critical_path
    assert 0.0 == path[0].t0_us
    assert found.time_us == pytest.approx(path[-1].t1_us)
    for one, other in itertools.pairwise(path):
        assert one.t1_us == pytest.approx(other.t0_us)
    assert {0, 1, 2, 3} == {event.rank for event in path}


def test_a_recorder_hears_every_step(small):
    """Moves carry their bytes and peers; waits say for whom; times are in order."""
    recorder = Recorder()
    plan = small.proved("all_reduce/two_shot", 2, "push bulk staged")
    machine = topology.load("h200x2")
    found = simulate(plan, machine, nbytes=1 << 16, recorder=recorder)

    events = recorder.events()
    moves = [e for e in events if e.kind == "move"]
    assert {"move", "signal", "wait"} == {e.kind for e in events}
    steps = [step for *_, step in plan.value.steps()]
    waits = sum(isinstance(step, Wait) for step in steps)
    assert len(steps) - waits == sum(e.kind != "wait" for e in events)
    assert {1 << 15} == {e.nbytes for e in moves}
    assert all(0 <= e.t0_us <= e.t1_us <= found.time_us for e in events)


@pytest.mark.parametrize(("boxes", "each"), [(4, 41), at_night(16, 44)])
def test_many_boxes_share_rails(small, boxes, each):
    """Of eight ranks each, a ring along every rail: only rails and NVSwitches carry.

    The benchmark runs 128 boxes.
    """
    ranks = 8 * boxes
    plan = small.proved("all_reduce/hierarchical", ranks, group=8)
    found = simulate(plan, topology.load(f"dgx_h100x{boxes}"), nbytes=boxes << 20)

    kinds = {load.name.split("->")[1].rstrip("0123456789") for load in found.links}
    assert {"rail", "nvswitch", ""} == kinds
    assert ranks * each == found.num_transfers
    rails = [load for load in found.links if "->rail" in load.name]
    assert ranks == len(rails)
    assert {round(2 * (boxes - 1) / boxes * (boxes << 20) / 8)} == {
        round(k.nbytes) for k in rails
    }


def test_a_slow_link_slows_what_crosses_it(small):
    """A ring is as fast as its slowest link; others have time to spare."""
    plan = small.proved("all_reduce/ring", 4, "push bulk staged blocks=64")
    m = topology.load("h200x4")
    slow = simulate(plan, m.degraded(slow={"2->nvswitch": 4}), nbytes=1 << 26)
    base = simulate(plan, m, nbytes=1 << 26)

    assert 3 < slow.time_us / base.time_us < 4.1
    assert "2->nvswitch" == slow.links[0].name


def test_the_simulator_says_what_it_knows_and_what_it_is_not():
    """It has no processes, so it opens no session."""
    assert "machines" in sim.doctor()

    class Group:
        rank = 0

    with pytest.raises(CallError, match=r"executor 'sim' has no processes"):
        sim.open_session(Group())


def test_a_dead_link_that_can_be_avoided_costs_time_only(small):
    """On DGX-1 there is a way around."""
    plan = small.proved("all_reduce/ring", 8)
    m = topology.load("dgx1")
    around = simulate(plan, m.degraded(dead_links=["0->1"]), nbytes=1 << 20)

    assert around.time_us > simulate(plan, m, nbytes=1 << 20).time_us


def test_a_machine_larger_than_the_plan_leaves_the_rest_idle(small):
    """Ranks beyond the plan's carry nothing."""
    found = simulate(small.proved("all_reduce/ring", 3), small.full(5), nbytes=1 << 12)

    assert {"0->1", "1->2", "2->0"} == {load.name for load in found.links}


def test_a_plan_may_run_on_any_ranks_of_a_machine(small):
    """Two ranks at opposite ends of a ring are three links apart."""
    plan, machine = small.proved("all_gather/one_shot", 2), small.ring(6)
    near, far = (
        simulate(plan, machine, nbytes=1 << 20, ranks=at) for at in ((4, 5), (0, 3))
    )

    assert {"4->5", "5->4"} == {link.name for link in near.links}
    assert 6 == len(far.links)
    assert far.time_us > near.time_us
    with pytest.raises(CallError, match=r"on ranks \(1, 1\) of .*; want 2 of its 6, e"):
        simulate(plan, machine, nbytes=8, ranks=(1, 1))
    dead = machine.degraded(dead_ranks=[5])
    assert simulate(plan, dead, nbytes=8, ranks=(0, 1)).time_us
    with pytest.raises(PeerLost, match="for rank 1, which is dead"):
        simulate(plan, dead, nbytes=8, ranks=(4, 5))
