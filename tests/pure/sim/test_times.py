"""Simulated times equal their closed forms, and every cost is charged once."""

import math

import pytest

from stretto import topology
from stretto.errors import CallError
from stretto.executors.sim import simulate
from stretto.program.collectives import bus_factor

RATE, ALPHA = 10.0, 1.0  # of the small machines: 10^9 B/s, us
S = 1024 * 840  # divides by 2 to 8 ranks, and into vectors of 16 bytes
PUSHED = ["push packets staged", "push bulk staged", "push bulk zero_copy"]


def wire_us(nbytes):
    return nbytes / (RATE * 1e3)


@pytest.mark.parametrize("schedule", PUSHED)
@pytest.mark.parametrize("n", [2, 3, 4, 7, 8])
def test_a_ring_all_reduce_takes_its_closed_form(small, n, schedule):
    """2(n-1) steps of one latency and an n-th of the vector."""
    found = simulate(
        small.proved("all_reduce/ring", n, schedule),
        small.ring(n),
        nbytes=S,
        tile_bytes=S,
    )

    want = 2 * (n - 1) * (ALPHA + wire_us(S / n))
    assert want == pytest.approx(found.time_us, rel=1e-9)
    assert S / want / 1e3 == pytest.approx(found.algbw_gbps)
    assert 2 * (n - 1) / n * found.algbw_gbps == pytest.approx(found.busbw_gbps)


@pytest.mark.parametrize("name", ["all_gather/ring", "reduce_scatter/ring"])
@pytest.mark.parametrize("n", [2, 5, 8])
def test_a_ring_of_one_phase_takes_half_of_that(small, name, n):
    """n-1 steps of one latency and an n-th of the whole."""
    found = simulate(small.proved(name, n), small.ring(n), nbytes=S, tile_bytes=S)

    assert (n - 1) * (ALPHA + wire_us(S / n)) == pytest.approx(found.time_us)


@pytest.mark.parametrize(
    ("name", "schedule"),
    [
        ("broadcast/binomial", "push packets staged"),
        ("broadcast/binomial", "push bulk staged"),
        ("all_reduce/recursive_doubling", ""),
    ],
)
@pytest.mark.parametrize("n", [2, 4, 8])
def test_a_tree_and_doubling_take_their_closed_form(small, n, name, schedule):
    """log2 n rounds of one latency and the whole vector, one way or both."""
    plan = small.proved(name, n, *filter(None, [schedule]))
    found = simulate(plan, small.full(n), nbytes=S, tile_bytes=S)

    assert math.log2(n) * (ALPHA + wire_us(S)) == pytest.approx(found.time_us)


def test_pulled_data_pay_for_asking(small):
    """A pull is told of, asked for, and comes: three latencies."""
    plan = small.proved("all_gather/one_shot", 2, "pull bulk zero_copy")
    found = simulate(plan, small.full(2), nbytes=S, tile_bytes=S)

    exit_us = ALPHA  # nobody leaves while it is still read from
    assert 3 * ALPHA + wire_us(S / 2) + exit_us == pytest.approx(found.time_us)


def test_two_flows_on_one_link_take_twice_as_long(small):
    """A link that two pairs of ranks share is shared fairly."""
    plan = small.proved(
        "permute/direct", 4, "push packets staged", pairs=((0, 2), (1, 3))
    )
    links = [small.link(0, 4, latency=0), small.link(1, 4, latency=0), small.link(4, 5)]
    links += [small.link(5, 2, latency=0), small.link(5, 3, latency=0)]
    back = [small.link(k.dst, k.src, latency=k.latency_us) for k in links]
    shared = topology.Machine(
        name="dumbbell",
        kind="gpu",
        num_ranks=4,
        links=(*links, *back),
        switches=(topology.Switch(name="a"), topology.Switch(name="b")),
        ranks_per_box=2,
    )
    found = simulate(plan, shared, nbytes=S, tile_bytes=S)

    loads = {load.name: load for load in found.links}
    assert 2 * wire_us(S) + ALPHA == pytest.approx(found.time_us)
    assert "a->b" not in loads  # links are named by whoever builds them
    assert 2 * S == loads["4->5"].nbytes
    assert loads["4->5"] == found.links[0]
    assert 2 * wire_us(S) / found.time_us == pytest.approx(loads["4->5"].share)


@pytest.mark.parametrize(
    ("costs", "extra_us"),
    [
        ({"launch_us": 3.0}, 3.0),
        ({"op_overhead_us": 0.5}, 2 * 0.5),  # one rank puts, the other reads
        ({"packet_efficiency": 0.5}, wire_us(S)),
        ({"block_gbytes_per_s": RATE / 4}, 3 * wire_us(S) + wire_us(S) * 4),
        ({"copy_gbytes_per_s": RATE / 2}, 2 * wire_us(S)),
        ({"flag_latency_us": 0.25}, 0.0),  # packets need no flag
    ],
)
def test_every_cost_is_charged_where_it_belongs(small, costs, extra_us):
    """One packet transfer: put by rank 0, read into the output by rank 1."""
    plan = small.proved("broadcast/flat", 2, "push packets staged")
    base = simulate(plan, small.full(2), nbytes=S, tile_bytes=S).time_us
    more = simulate(plan, small.full(2, **costs), nbytes=S, tile_bytes=S).time_us

    assert ALPHA + wire_us(S) == pytest.approx(base)
    assert base + extra_us == pytest.approx(more)


def test_a_flag_has_a_price_where_data_need_one(small):
    """In bulk the wait ends a flag's latency after the data have come."""
    plan = small.proved("broadcast/flat", 2, "push bulk staged")
    found = simulate(plan, small.full(2, flag_latency_us=0.25), nbytes=S, tile_bytes=S)

    assert ALPHA + wire_us(S) + 0.25 == pytest.approx(found.time_us)


def test_blocks_add_up_until_the_link_is_full(small):
    """A lane of more blocks pushes faster, up to what the link takes."""
    times = [
        simulate(
            small.proved(
                "all_gather/one_shot", 2, f"push packets staged blocks={blocks}"
            ),
            small.full(2, block_gbytes_per_s=RATE / 4, copy_gbytes_per_s=math.inf),
            nbytes=S,
        ).time_us
        for blocks in (1, 2, 4, 8)
    ]

    assert times == sorted(times, reverse=True)
    assert times[0] > times[1] > times[2]


def test_puts_in_the_background_leave_side_by_side(small):
    """On links of their own all puts of a broadcast take as long as one.

    Otherwise a lane sends one after another unless a single step names all peers.
    """
    plan = small.proved("scatter/flat", 5, "push bulk staged")
    behind = simulate(plan, small.full(5, background_puts=True), nbytes=S)
    in_turn = simulate(plan, small.full(5), nbytes=S)

    assert ALPHA + wire_us(S / 5) == pytest.approx(behind.time_us, rel=1e-3)
    assert ALPHA + 4 * wire_us(S / 5) == pytest.approx(in_turn.time_us, rel=1e-3)


def test_tiles_flow_through_a_chain(small):
    """Tiles overlap from hop to hop; on a single hop they cost nothing."""
    n, tiles = 4, 8
    plan = small.proved("broadcast/flat", 2, "push packets staged")
    one = simulate(plan, small.full(2), nbytes=S, tile_bytes=S)
    many = simulate(plan, small.full(2), nbytes=S, tile_bytes=S // tiles)
    assert (1, tiles) == (one.epochs, many.epochs)
    assert one.time_us == pytest.approx(many.time_us)

    chain = small.proved("broadcast/binomial", n, "push packets staged")
    piped = simulate(chain, small.full(n), nbytes=S, tile_bytes=S // tiles)
    whole = simulate(chain, small.full(n), nbytes=S, tile_bytes=S)
    assert piped.time_us < whole.time_us


def test_epochs_that_are_not_run_go_on_at_the_same_pace(small):
    """Sixteen of 128 tiles give the time of all of them, in the steady state."""
    plan = small.proved("all_reduce/ring", 4, "push packets staged")
    args = {"nbytes": S, "tile_bytes": S // 4 // 64}
    few = simulate(plan, small.ring(4), max_epochs=8, **args)
    all_of_them = simulate(plan, small.ring(4), max_epochs=1000, **args)

    assert (8, 64) == (few.simulated_epochs, all_of_them.simulated_epochs)
    assert few.epochs == all_of_them.epochs == 64
    assert all_of_them.time_us == pytest.approx(few.time_us, rel=0.02)


def test_a_simulation_repeats_itself(small):
    """The same plan on the same machine gives the same answer, to the last bit."""
    plan = small.proved("all_to_all/one_shot", 6, "push bulk staged blocks=4")
    dgx1 = topology.load("dgx1")

    assert simulate(plan, dgx1, nbytes=S) == simulate(plan, dgx1, nbytes=S)


def test_unequal_parts_are_timed_by_their_counts(small):
    """Counts decide; the largest part sets the time."""
    plan = small.proved("all_gather/one_shot", 2, "push packets staged")
    equal = simulate(plan, small.full(2), nbytes=8000, counts=[1000, 1000])
    skewed = simulate(plan, small.full(2), nbytes=8000, counts=[2000, 0])

    assert ALPHA + wire_us(4000) == pytest.approx(equal.time_us)
    assert ALPHA + wire_us(8000) == pytest.approx(skewed.time_us)


def test_nothing_to_move_takes_latency_only(small):
    """A barrier, and a call of no bytes, are rounds of signals."""
    barrier = simulate(small.proved("barrier/closed", 4), small.full(4), nbytes=0)
    empty = simulate(small.proved("all_reduce/two_shot", 4), small.full(4), nbytes=0)

    assert ALPHA == pytest.approx(barrier.time_us)
    assert 0.0 == barrier.algbw_gbps
    assert 2 * ALPHA == pytest.approx(empty.time_us)


def test_a_plan_needs_a_machine_that_is_large_enough(small):
    """Fewer ranks than the machine has are fine; more are refused."""
    plan = small.proved("all_reduce/one_shot", 4)

    assert simulate(plan, topology.load("h200x8"), nbytes=1024).time_us > 0
    with pytest.raises(CallError, match=r"4 ranks on h200x2, which has 2; want a lar"):
        simulate(plan, topology.load("h200x2"), nbytes=1024)
    with pytest.raises(CallError, match=r"nbytes=-4; want 0 or more"):
        simulate(plan, topology.load("h200x4"), nbytes=-4)


def test_bus_bandwidth_is_counted_as_nccl_tests_does():
    """2(n-1)/n for all_reduce, (n-1)/n where each rank keeps its part, else 1."""
    assert 1.5 == bus_factor("all_reduce", 4)
    assert 0.75 == bus_factor("all_to_all", 4) == bus_factor("gather", 4)
    assert 1.0 == bus_factor("broadcast", 4) == bus_factor("permute", 4)


def test_only_a_machine_of_its_own_is_needed(small):
    """A machine with one rank moves nothing and still answers."""
    alone = simulate(small.proved("all_reduce/ring", 1), small.machine(1, []), nbytes=S)

    assert alone.time_us >= 0
    assert 0 == alone.num_transfers
