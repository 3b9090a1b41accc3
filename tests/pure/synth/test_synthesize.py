"""What is found is a proved program, near its bound, and the same at every run."""

from __future__ import annotations

import itertools
import math
from fractions import Fraction

import numpy as np
import pytest
from tests.nightly import at_night, nightly

from stretto import topology
from stretto.compiler.verify import verify
from stretto.errors import TopologyError
from stretto.program.lang import Algorithm
from stretto.synth import (
    COLLECTIVES,
    Budget,
    Demand,
    bound,
    from_machine,
    synthesize,
    written,
)
from stretto.synth.bounds.cuts import gather_cut
from stretto.synth.direct.greedy import greedy
from stretto.synth.direct.trees import book_trees, pack_trees
from stretto.synth.emit.file import identifier
from stretto.synth.exact.joint import solve_joint
from stretto.synth.exact.steps import frontier, rounds_bound
from stretto.synth.exact.timed_flow import flooded, most_chunks
from stretto.synth.general.rounding import _potential
from stretto.synth.network.symmetry import find_symmetry
from stretto.synth.network.without_switches import Units, _exact, feasible
from stretto.synth.schedules.replay import replay
from stretto.synth.schedules.schedule import TimedSchedule

QUICK = Budget(seconds=0)
ROOTED = ("broadcast", "reduce", "gather", "scatter")


def net(name):
    """Return a machine's network."""
    return from_machine(topology.load(name))


@pytest.mark.parametrize(
    ("machine", "collective"),
    nightly(itertools.product(["h200x4", "ndv2x2", "torus4x4"], COLLECTIVES), 5),
)
def test_every_collective_becomes_a_proved_program(machine, collective):
    """The program is built from its own text, and keeps its promise."""
    found = synthesize(collective, net(machine), 10**6, splits=(1, 2), budget=QUICK)
    program = found.program("it")

    assert collective == program.collective
    assert program is verify(program).value
    assert found.us >= found.bound_us


@pytest.mark.parametrize("collective", ROOTED)
def test_the_root_may_be_any_rank(collective):
    """The root is part of the question and of the program."""
    found = synthesize(
        collective, net("ndv2x2"), 10**6, splits=(1,), root=11, budget=QUICK
    )
    program = found.program("it")

    assert 11 == program.params["root"]
    assert verify(program)


GOALS = [
    ("ndv2x2", "all_gather", 64_000, 5.85),
    pytest.param("ndv2x2", "all_gather", 10**6, 44.6, marks=pytest.mark.slow),
    pytest.param("ndv2x2", "all_gather", 10**9, 41_000, marks=pytest.mark.slow),
    pytest.param("ndv2x2", "all_to_all", 10**9, 321_000, marks=pytest.mark.slow),
    ("dgx2x2", "all_to_all", 10**9, 80_500),
]


@pytest.mark.parametrize(("machine", "collective", "size", "us"), GOALS)
def test_published_times_are_beaten(machine, collective, size, us):
    """The goal table's times, for all ranks and in exact replay."""
    found = synthesize(collective, net(machine), size, budget=QUICK)

    assert found.us <= us


@pytest.mark.parametrize(("machine", "rounds"), [("torus4x4", 4), ("torus3x3", 2)])
def test_tori_need_no_more_rounds_than_their_degree_demands(machine, rounds):
    """The discrete bound: (N-1)/degree, rounded up."""
    network = net(machine)
    size = 10**9
    found = synthesize("all_gather", network, size, splits=(1,), budget=QUICK)

    assert float(found.us) < rounds * size / network.num_ranks / 1000 * 1.0001


@pytest.mark.parametrize("machine", ["dgx1", "mi250x", "mi250x2", "torus4x4"])
def test_all_to_all_reaches_95_percent_of_its_bound(machine):
    """The optimal flow, cut into paths, loses little on the clock."""
    found = synthesize("all_to_all", net(machine), 10**9, splits=(4,), budget=QUICK)

    assert found.gap < 1 / 0.95 - 1


@pytest.mark.slow
def test_the_frontier_of_dgx1_is_proved():
    """The published points are found, and nothing better exists."""
    network = net("dgx1")
    for collective, chunks, want in (
        ("all_gather", range(1, 7), {(1, 2, 2), (2, 2, 3), (6, 3, 7)}),
        ("all_to_all", range(1, 4), {(1, 2, 3), (3, 2, 8)}),
        ("scatter", (1, 2, 6), {(1, 2, 2), (2, 2, 3), (6, 2, 7)}),
    ):
        limit = bound(collective, network)
        points = list(frontier(collective, network, limit, chunks=chunks))

        assert want <= {(p.chunks, p.steps, p.rounds) for p in points}
        assert all(p.proved for p in points)
        assert rounds_bound(limit, network) == points[-1].ratio
        assert all(replay(p.schedule, bound=limit).steps <= p.steps for p in points)


@pytest.mark.slow
def test_the_broadcast_frontier_of_dgx1_is_proved():
    """A flow over time says how many chunks fit into so many rounds; trees use it."""
    network = net("dgx1")
    limit = bound("broadcast", network)
    points = list(
        frontier("broadcast", network, limit, chunks=(2, 6, 12), most_steps=4)
    )

    assert [(2, 2, 2), (6, 3, 3), (12, 3, 5), (12, 4, 4)] == [
        (p.chunks, p.steps, p.rounds) for p in points
    ]
    assert all(p.proved for p in points)
    assert all(replay(p.schedule, bound=limit).steps <= p.steps for p in points)


@pytest.mark.slow
@pytest.mark.parametrize(("chunks", "steps"), [(30, 7)])
def test_broadcasts_fill_every_round_that_a_flow_over_time_does(chunks, steps):
    """Six chunks a round but eleven in all: no more fit, and so many almost do."""
    network = net("dgx1")
    moves = flooded(network, 0, [1] * steps, chunks)
    demand = Demand(
        collective="broadcast", network=network, nbytes=1, split=chunks, pieces=chunks
    )

    assert steps > max(m.start for m in moves)
    assert (
        replay(TimedSchedule(demand=demand, moves=moves, generator="timed")).steps
        <= steps
    )
    assert 6 * steps - 11 == most_chunks(network, 0, [1] * steps) == chunks + 1
    assert flooded(network, 0, [1] * steps, chunks + 2) is None


@pytest.mark.parametrize("collective", ["gather", at_night("scatter")])
def test_paths_that_progress_evenly_keep_every_link_busy(collective):
    """In the order of longest ways first, 22 % above the bound."""
    found = synthesize(collective, net("mi250x"), 10**9, splits=(24,), budget=QUICK)

    assert "even" in found.schedule.generator
    assert found.gap < 0.07


@pytest.mark.slow
def test_pipelined_trees_come_near_the_bound():
    """With more pieces a tree loses less while it fills and drains."""
    network = net("mi250x")
    forest, pieces = pack_trees(network), 64
    demand = Demand(
        collective="all_gather",
        network=network,
        nbytes=10**9,
        split=forest.trees * pieces,
    )
    limit = bound("all_gather", network)
    us = replay(book_trees(forest, demand, pieces=pieces, eager=8), bound=limit).us

    assert us < limit.us(10**9) * Fraction(1011, 1000)


TREES = [
    ("mi250x", 1, 266.667),
    ("mi250x", 2, 320),
    ("mi250x", 3, 342.857),
    ("mi250x", 4, 320),
    ("mi250x", 5, 333.333),
    ("mi250x", 8, 336.842),
    ("mi250x", None, 342.857),
    ("dgx1", None, 171.429),
    ("dgx_a100", None, 342.857),
    ("dgx_a100x2", 1, 342.857),
    ("dgx_a100x2", 8, 345.946),
    ("dgx_a100x2", None, 346.667),
    ("dgx_h100x2", None, 533.333),
]


@pytest.mark.parametrize(("machine", "trees", "rate"), nightly(TREES, 3))
def test_trees_reach_the_exact_rate(machine, trees, rate):
    """Packings are checked link by link; the rates are those of ForestColl."""
    network = net(machine)
    forest = pack_trees(network, trees=trees)

    assert rate == pytest.approx(
        float(forest.trees / forest.units_per_rate * network.num_ranks), abs=1e-3
    )


def test_exact_splitting_serves_where_an_even_spread_does_not():
    """With one NIC gone an even spread loses rate; splitting does not."""
    whole = topology.load("dgx_a100x2")
    nic = [k for k in whole.links if 1 in (k.src, k.dst) and "ib" in k.name]
    network = from_machine(whole.degraded(dead_links=[k.name for k in nic]))
    forest = pack_trees(network)
    demand = Demand(
        collective="all_gather", network=network, nbytes=10**9, split=forest.trees
    )

    assert 2 == len(nic)
    assert (
        bound("all_gather", network).algbw
        == forest.trees / forest.units_per_rate * network.num_ranks
    )
    assert replay(book_trees(forest, demand)).us > 0
    with pytest.raises(TopologyError, match="as much out as in"):
        pack_trees(from_machine(whole.degraded(dead_links=[nic[0].name])))


def test_exact_splitting_keeps_every_rate():
    """Used alone, without the even spread, it finds the same rates."""
    for name, trees in (("dgx_a100", 1), ("dgx_a100x2", 1), ("h200x4", 3)):
        network = net(name)
        rate = gather_cut(network).rate
        scale = trees / rate
        scale *= math.lcm(*((k.rate * scale).denominator for k in network.links))
        counts = dict.fromkeys(network.members, int(rate * scale))
        units = Units(network, [int(k.rate * scale) for k in network.links])
        for w in range(network.num_nodes - 1, network.num_ranks - 1, -1):
            units = _exact(units, w, counts)

        assert feasible(units, counts)
        assert all(max(u, v) < network.num_ranks for u, v, _ in units.edges())


@pytest.mark.slow
def test_the_joint_model_proves_the_best_small_schedule():
    """At 1 KB two NDv2 need 4.118 us with two chunks a rank, and no less."""
    network = net("ndv2x2")
    symmetry, limit = find_symmetry(network), bound("all_gather", network)
    demand = Demand(collective="all_gather", network=network, nbytes=1000, split=2)
    hint = greedy(demand, symmetry)
    found = solve_joint(demand, symmetry, limit, budget=Budget(seconds=20), hint=hint)

    assert found.proved
    assert 4.116 <= float(replay(found.schedule, bound=limit).us) <= 4.124


def test_the_same_seed_gives_the_same_program():
    """Time does not enter; another seed may find another schedule."""
    twice = [
        synthesize(
            "all_gather", net("dgx1"), 64_000, splits=(2,), budget=Budget(seconds=0.2)
        ).text("it")
        for _ in range(2)
    ]

    assert twice[0] == twice[1]


def test_the_text_is_a_module_of_the_language():
    """It defines one algorithm, for exactly this number of ranks."""
    found = synthesize("all_gather", net("ndv2x2"), 10**6, splits=(1,), budget=QUICK)
    text = found.text("ndv2x2 1M")
    space = {"__name__": "emitted"}
    exec(compile(text, "emitted.py", "exec"), space)
    (algorithm,) = (v for v in space.values() if isinstance(v, Algorithm))

    assert "IMAGES = range(0, 16, 8)" in text
    assert "all_gather/ndv2x2_1m" == algorithm.name
    assert "made for 16 ranks, not 8" in algorithm.refuses(8)
    assert "found_4x" == identifier("4x")


def test_progress_is_told():
    """Every improvement is shown, each better than the one before."""
    seen = []
    synthesize("all_gather", net("ndv2x2"), 10**6, budget=QUICK, progress=seen.append)

    assert seen == sorted(seen, key=lambda t: -t.us)
    assert seen


def test_two_ranks_that_meet_save_a_step_between_boxes():
    """Sums of two boxes cross at once, and not there and back again."""
    network = net("dgx_h100x2")
    found = synthesize("all_reduce", network, 65536, budget=Budget.within(2))
    between = max(k.alpha for k in network.links)
    program = verify(found.program("it"))
    again = written(program, network.machine, nbytes=65536).time_us

    assert found.schedule.meetings()
    assert found.us < 4 * between  # two hops over the NIC, there and back
    assert again == pytest.approx(float(found.us), rel=1e-9)


def test_a_link_that_is_its_own_image_carries_all_images():
    """Sixteen ranks share one cable between two boxes; eight images queue for it."""
    network = net("two_cpu_boxes")
    symmetry = find_symmetry(network)
    demand = Demand(collective="all_gather", network=network, nbytes=16 * 10**6)
    schedule = greedy(demand, symmetry)
    cables = [
        i
        for i, k in enumerate(network.links)
        if k.rate == min(k.rate for k in network.links)
    ]
    crossings = sum(cables[0] in m.links for m in schedule.moves)
    last = max(m.start for m in schedule.moves if set(cables) & set(m.links))

    assert 8 == max(symmetry.images) == symmetry.images[cables[0]]
    assert last >= (crossings - 8) * 10**6 / (network.links[cables[0]].rate * 1000)


@pytest.mark.parametrize("steeper", [1, 10, 10**6, 10**12])
def test_a_route_over_a_far_slower_link_is_only_worse(steeper):
    """What it would carry overflows: that is infinite, and no warning to who asked."""
    best, worst = _potential(np.array([[1.0, 1.0], [1.0, 1.0 + steeper]]), 1.0)

    assert best < worst
