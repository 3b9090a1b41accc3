"""Bounds are exact, and each comes with a certificate that can be checked."""

from __future__ import annotations

import itertools
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.nightly import examples

from stretto import topology
from stretto.errors import TopologyError, UnknownNameError
from stretto.synth import bound, from_machine
from stretto.synth.bounds.cuts import broadcast_cut, gather_cut, scatter_cut
from stretto.synth.bounds.flows import exchange_flow
from stretto.synth.network.maxflow import FlowGraph
from stretto.synth.network.model import Network, NetworkLink
from stretto.synth.network.symmetry import find_symmetry, trivial


def network_of(rates, *, name="drawn"):
    """Make a network of ranks from a matrix of rates."""
    n = len(rates)
    return Network(
        name=name,
        num_ranks=n,
        num_nodes=n,
        links=tuple(
            NetworkLink(src=i, dst=j, rate=Fraction(rates[i][j]))
            for i, j in itertools.permutations(range(n), 2)
            if rates[i][j]
        ),
        box=(0,) * n,
        members=tuple(range(n)),
    )


@st.composite
def connected(draw):
    """Draw a small network in which a ring joins everybody."""
    n = draw(st.integers(2, 5))
    rates = [
        [draw(st.sampled_from([0, 0, 1, 2, 3])) for _ in range(n)] for _ in range(n)
    ]
    for i in range(n):
        rates[i][(i + 1) % n] = max(1, rates[i][(i + 1) % n])
    return network_of(rates)


@given(connected())
@settings(max_examples=examples(60), deadline=None)
def test_the_all_gather_rate_is_the_narrowest_of_all_cuts(network):
    """Newton's method finds what trying every subset finds."""
    n = network.num_ranks
    narrowest = min(
        sum(k.rate for k in network.links if k.src in s and k.dst not in s) / len(s)
        for size in range(1, n)
        for s in map(set, itertools.combinations(range(n), size))
    )

    assert narrowest == gather_cut(network).rate


@given(connected(), st.integers(0, 4))
@settings(max_examples=examples(40), deadline=None)
def test_the_scatter_rate_is_the_narrowest_cut_around_the_root(network, root):
    """What leaves a set that holds the root is shared by those outside."""
    n, root = network.num_ranks, root % network.num_ranks
    narrowest = min(
        sum(k.rate for k in network.links if k.src in s and k.dst not in s)
        / (n - len(s))
        for size in range(1, n)
        for s in map(set, itertools.combinations(range(n), size))
        if root in s
    )

    assert narrowest == scatter_cut(network, root).rate


@given(connected(), st.lists(st.integers(1, 5), min_size=5, max_size=5))
@settings(max_examples=examples(40), deadline=None)
def test_unequal_parts_have_their_own_narrowest_cuts(network, sizes):
    """A set of ranks counts with the data that it holds, or that it wants."""
    n = network.num_ranks
    weights = tuple(sizes[:n])
    sets = [set(s) for k in range(1, n) for s in itertools.combinations(range(n), k)]

    def out(s):
        return sum(k.rate for k in network.links if k.src in s and k.dst not in s)

    def held(s):
        return sum(weights[r] for r in s)

    whole = set(range(n))
    gather = min(out(s) / held(s) for s in sets)
    scatter = min(out(s) / held(whole - s) for s in sets if 0 in s)

    assert gather == gather_cut(network, trivial(network), weights).rate
    assert scatter == scatter_cut(network, 0, weights).rate


@given(connected(), st.lists(st.integers(1, 5), min_size=5, max_size=5))
@settings(max_examples=examples(15), deadline=None)
def test_the_flow_of_unequal_parts_never_exceeds_its_certificate(network, sizes):
    """The lengths prove the rate for parts of any sizes."""
    weights = tuple(sizes[: network.num_ranks])
    flow = exchange_flow(network, trivial(network), weights=weights)

    assert flow.achieved == pytest.approx(float(flow.rate), rel=1e-4)


@given(connected())
@settings(max_examples=examples(30), deadline=None)
def test_the_flow_never_exceeds_its_certificate(network):
    """Weak duality: what the solver reaches is below what the lengths prove."""
    flow = exchange_flow(network, trivial(network))

    assert flow.achieved <= float(flow.rate) * (1 + 1e-9)
    assert flow.achieved == pytest.approx(float(flow.rate), rel=1e-4)


@given(st.integers(2, 7), st.randoms(use_true_random=False))
@settings(max_examples=examples(60), deadline=None)
def test_flow_and_cut_agree_with_another_solver(n, chance):
    """The value is the other solver's, and the cut's capacity equals it."""
    csgraph = pytest.importorskip("scipy.sparse.csgraph")
    sparse = pytest.importorskip("scipy.sparse")
    capacity = np.array(
        [
            [0 if i == j else chance.choice([0, 0, 1, 3, 7]) for j in range(n)]
            for i in range(n)
        ]
    )
    flow = FlowGraph(n)
    for i, j in itertools.permutations(range(n), 2):
        flow.add(i, j, int(capacity[i, j]))
    value = flow.solve(0, n - 1)
    side = flow.source_side()

    other = csgraph.maximum_flow(sparse.csr_matrix(capacity), 0, n - 1)

    assert other.flow_value == value
    assert value == sum(capacity[i, j] for i in side for j in range(n) if j not in side)


RATES = [
    ("dgx1", "all_gather", Fraction(1200, 7)),
    ("dgx1", "all_reduce", Fraction(600, 7)),
    ("dgx1", "all_to_all", Fraction(75)),
    ("ndv2x2", "all_gather", Fraction(25)),
    ("ndv2x2", "all_to_all", Fraction(25, 8)),
    ("ndv2x4", "all_gather", Fraction(50, 3)),
    ("dgx2x2", "all_gather", Fraction(4000, 31)),
    ("dgx2x2", "all_to_all", Fraction(25, 2)),
    ("dgx_a100x2", "all_gather", Fraction(1040, 3)),
    ("dgx_a100x4", "all_gather", Fraction(800, 3)),
    ("dgx_a100x8", "all_gather", Fraction(1600, 7)),
    ("mi250x", "all_gather", Fraction(2400, 7)),
    ("mi250x2", "all_gather", Fraction(5312, 15)),
    ("mi250x", "all_to_all", Fraction(75)),
    ("mi250x2", "all_to_all", Fraction(32)),
    ("dgx_h100x2", "all_gather", Fraction(1600, 3)),
    ("dgx_h100x4", "all_gather", Fraction(16000, 31)),
    ("dgx_h100x16", "all_gather", Fraction(1280, 3)),
    ("torus4x4", "all_gather", Fraction(64, 15)),
    ("torus8x8", "all_gather", Fraction(256, 63)),
    ("torus4x4x4", "all_gather", Fraction(128, 21)),
    ("torus4x4", "all_to_all", Fraction(2)),
    ("torus8x8", "all_to_all", Fraction(1)),
    ("torus4x4x4", "all_to_all", Fraction(2)),
]


@pytest.mark.parametrize(("machine", "collective", "rate"), RATES)
def test_published_machines_have_their_known_rates(machine, collective, rate):
    """The goal table's rates, proved here again."""
    found = bound(collective, from_machine(topology.load(machine)))

    assert float(rate) == pytest.approx(float(found.algbw), rel=1e-7)


def test_rooted_collectives_of_dgx1_have_their_known_rounds():
    """A scatter needs 7/6 rounds a chunk, a broadcast 1/6."""
    network = from_machine(topology.load("dgx1"))

    assert Fraction(7, 6) == 25 / scatter_cut(network, 0).rate
    assert Fraction(1, 6) == 25 / broadcast_cut(network, 0).capacity


def test_a_bound_knows_the_latency_behind_a_narrow_cut():
    """What arrives last at the NIC must still cross the box."""
    found = bound("all_gather", from_machine(topology.load("ndv2x2")))

    assert Fraction(427, 10) == found.us(10**6)
    assert "through 12.5 GB/s" in found.binding(10**6).why
    assert Fraction(41, 10) == found.us(0)
    assert 5 == found.steps


def test_the_bound_of_all_in_one_port_has_one_latency_on_top():
    """Two DGX-2 at 16 MB cannot be faster than 124.7 us."""
    found = bound("all_gather", from_machine(topology.load("dgx2x2")))

    assert Fraction(1247, 10) == found.us(16 * 10**6)


def test_symmetries_act_freely_and_preserve_links():
    """Every member of the group is a permutation that fixes no rank."""
    for name in ("dgx1", "dgx2x2", "mi250x2", "torus4x4x4"):
        network = from_machine(topology.load(name))
        symmetry = find_symmetry(network)
        ranks = range(network.num_ranks)

        assert network.num_ranks == symmetry.order * len(symmetry.representatives)
        assert all(g[r] != r for g in symmetry.nodes[1:] for r in ranks)


def test_a_dead_link_lowers_the_bound_and_a_cut_off_rank_is_named():
    """A degraded machine has its own, lower rate."""
    machine = topology.load("dgx1")
    whole = bound("all_gather", from_machine(machine))
    hurt = bound("all_gather", from_machine(machine.degraded(dead_links=["0->1"])))
    cut = machine.degraded(dead_links=[k.name for k in machine.links if k.dst == 3])

    assert hurt.algbw < whole.algbw
    with pytest.raises(TopologyError, match=r"nothing reaches ranks \[3\]"):
        bound("all_gather", from_machine(cut))


def test_a_group_without_relays_is_a_machine_of_its_own():
    """Relays help: with them the group has the box's other links too."""
    network = from_machine(topology.load("dgx1"))
    alone = network.group([0, 1, 2, 3], relays=False)
    helped = network.group([0, 1, 2, 3], relays=True)

    assert 4 == alone.num_ranks
    assert gather_cut(alone).rate < gather_cut(helped).rate
    with pytest.raises(TopologyError, match="want ranks 0 to 7"):
        network.group([9], relays=True)


def test_a_wrong_collective_is_answered_with_the_right_ones():
    """Only what can be bounded is."""
    with pytest.raises(UnknownNameError, match="all_gather"):
        bound("all_gater", from_machine(topology.load("dgx1")))


@pytest.mark.parametrize(
    ("links", "wrong"),
    [
        ([(0, 1, 1, 0), (1, 0, 1, 0), (0, 1, 2, 5)], "0->1: given twice"),
        ([(0, 1, 1, 0), (1, 1, 1, 0)], "1->1: want two of the nodes 0 to 1"),
        ([(0, 1, 1, 0), (1, 2, 1, 0)], "1->2: want two of the nodes 0 to 1"),
        ([(0, 1, 1, 0), (1, 0, 0, 0)], "1->0: 0 GB/s, 0 us; want a rate above 0"),
        ([(0, 1, 1, 0), (1, 0, 1, -1)], "1->0: 1 GB/s, -1 us; want a rate above 0"),
    ],
)
def test_a_network_of_links_that_are_none_or_two_is_refused(links, wrong):
    """Of two links between the same ends a bound would name one, and be too high."""
    made = [
        NetworkLink(src=u, dst=v, rate=Fraction(rate), alpha=Fraction(alpha))
        for u, v, rate, alpha in links
    ]
    with pytest.raises(TopologyError) as raised:
        Network(
            name="pair", num_ranks=2, num_nodes=2, links=tuple(made), box=(0, 0),
            members=(0, 1),
        )  # fmt: skip
    assert wrong in str(raised.value)
