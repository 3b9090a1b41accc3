"""The machines that stretto ships: what their files say, and what holds for all."""

import itertools
import math

import pytest

from stretto.errors import TopologyError, UnknownNameError
from stretto.topology import is_symmetry, load, names, patterns


def ingress(machine, rank):
    return sum(k.bandwidth_gbytes_per_s for k in machine.links if k.dst == rank)


def speeds(machine):
    return {k.name: (k.bandwidth_gbytes_per_s, k.latency_us) for k in machine.links}


@pytest.mark.parametrize("name", names())
def test_a_listed_machine_loads_and_joins_its_ranks(name):
    """Every listed name gives a machine of that name whose ranks reach one another."""
    m = load(name)

    assert name == m.name
    assert m.about
    for src in (0, m.num_ranks // 2, m.num_ranks - 1):
        for dst in {0, 1 % m.num_ranks, m.num_ranks - 1} - {src}:
            route = m.route(src, dst)
            ends = [m.links[i] for i in route.links]
            assert (src, dst) == (ends[0].src, ends[-1].dst)
            assert all(a.dst == b.src for a, b in itertools.pairwise(ends))
            assert route.latency_us == pytest.approx(sum(k.latency_us for k in ends))


@pytest.mark.parametrize("name", names())
def test_the_symmetries_of_a_machine_are_symmetries(name):
    """Every permutation that a file claims maps links to equal links."""
    m = load(name)

    assert all(is_symmetry(m, s) for s in m.symmetries)


@pytest.mark.parametrize("name", names())
def test_every_rank_of_a_listed_machine_sends_what_it_receives(name):
    """The rates out of all ranks and into all ranks are equal: no link is one-sided."""
    m = load(name)
    out = sum(k.bandwidth_gbytes_per_s for k in m.links if k.src < m.num_ranks)
    into = sum(ingress(m, r) for r in range(m.num_ranks))

    assert out == pytest.approx(into)


def test_swapping_neighbours_is_no_symmetry_of_dgx1():
    """The check can say no."""
    m = load("dgx1")

    assert not is_symmetry(m, [1, 0, 2, 3, 4, 5, 6, 7])
    assert not is_symmetry(m, [0, 0, 2, 3, 4, 5, 6, 7])


def test_a_symmetry_may_move_switches():
    """Boxes may be swapped only together with their NVSwitches."""
    m = load("dgx_h100x4")

    assert is_symmetry(m, [(r + 8) % 32 for r in range(32)])
    assert not is_symmetry(m, [(r + 1) % 32 for r in range(32)])


@pytest.mark.parametrize(
    ("name", "rate"),
    [
        ("dgx1", 150.0),  # six links of 25
        ("ndv2", 150.0),  # two double links of 50, two single ones of 25
        ("mi250x", 350.0),  # seven lanes of 50
        ("dgx_a100x2", 325.0),
        ("dgx_h100x16", 500.0),
        ("mi250x2", 366.0),
        ("torus4x4", 4.0),
        ("torus4x4x4", 6.0),
    ],
)
def test_every_rank_takes_in_what_the_published_maps_say(name, rate):
    """The sum of the links into each rank is that of the source."""
    m = load(name)

    assert {rate} == {round(ingress(m, r), 6) for r in range(m.num_ranks)}


def test_ndv2_has_the_constants_of_te_ccl():
    """50 and 25 GB/s at 0.7 us inside; 0->9 and 8->1 at 12.5 GB/s and 1.3 us."""
    links = speeds(load("ndv2x2"))

    assert (50.0, 0.7) == links["0->1"] == links["14->15"]
    assert (25.0, 0.7) == links["0->2"]
    assert (12.5, 1.3) == links["0->9"] == links["8->1"]
    assert 2 * 32 + 2 == len(links)


def test_ndv2_of_four_boxes_meets_at_one_switch():
    """Beyond two boxes GPU 0 sends to the switch, and the switch to GPU 1."""
    links = speeds(load("ndv2x4"))

    assert {"0->ib", "8->ib", "16->ib", "24->ib"} == {k for k in links if "->ib" in k}
    assert (12.5, 1.3) == links["ib->1"] == links["24->ib"]


def test_taccl_betas_are_rates():
    """Beta 23, 46 and 105 us/MB; a ring step of 1 MB over 16 ranks takes 9.1625 us."""
    m = load("ndv2_tacclx2")
    route = m.route(0, 9)
    slowest = min(m.links[i].bandwidth_gbytes_per_s for i in route.links)

    assert 1000 / 23 == pytest.approx(speeds(m)["0->1"][0])
    assert 15 * (route.latency_us + 62500 / (slowest * 1e3)) == pytest.approx(137.4375)


def test_dgx2_has_the_constants_of_te_ccl():
    """125 GB/s a port, 0.7 us GPU to GPU, odd GPUs to even ones of the other box."""
    m = load("dgx2x2")

    assert 0.7 == m.route(0, 5).latency_us
    assert (12.5, 2.6) == speeds(m)["1->16"] == speeds(m)["31->14"]
    assert all(s.copies for s in m.switches)
    assert 125.0 == ingress(m, 1)
    assert 137.5 == ingress(m, 0)


def test_the_dies_of_one_package_share_a_nic_in_te_ccl_s_mi250():
    """Between boxes the way leads over a NIC node; alone in a box there is none."""
    m = load("mi250x_tecclx2")

    between = [m.node_name(m.links[i].dst) for i in m.route(1, 17).links]
    assert ["nic0", "ib", "nic8", "17"] == between
    assert () == load("mi250x_teccl").switches


def test_a_cluster_of_128_boxes_has_rails():
    """Rail i joins GPU i of every box; across rails a rank of the box relays."""
    m = load("dgx_h100x128")

    assert (1024, 128, 8) == (m.num_ranks, m.num_boxes, m.ranks_per_box)
    assert range(3, 1024, 8) == m.rails[3]
    assert range(8, 16) == m.boxes[1]
    assert () == m.route(3, 1019).relays
    assert 1 == len(m.route(3, 1020).relays)


def test_a_torus_joins_neighbours_in_every_dimension():
    """Sizes of one add nothing, of two one link, others wrap around."""
    m = load("torus1x2x3")

    assert 6 == m.num_ranks
    assert 6 + 12 == len(m.links)
    assert {2.0 + 1.0} == {ingress(m, r) for r in range(6)}


def test_a_balanced_dragonfly_is_at_most_three_router_hops_wide():
    """Any two hosts are joined over at most one global link."""
    m = load("dragonfly9x4x2")

    worst = max(len(m.route(0, r).links) for r in range(1, m.num_ranks))
    assert 2 + 3 == worst
    assert {25.0} == {ingress(m, r) for r in range(m.num_ranks)}
    routers = [m.num_ranks + i for i in range(len(m.switches))]
    degrees = {sum(k.src == node for k in m.links) for node in routers}
    assert {2 + 3 + 2} == degrees  # hosts, the group's routers, global links


def test_a_name_with_a_parameter_is_read_from_its_family():
    """Names that are not listed work as long as their numbers are in range."""
    assert 3 == load("h200x3").num_ranks
    assert 24 == load("dgx_h200x3").num_ranks
    assert "h200x3" not in names()
    assert "h200x{ranks}" in patterns()


def test_a_number_out_of_range_is_answered_with_the_range():
    """Every family that the name fits says what it takes."""
    with pytest.raises(TopologyError, match=r"'h200x99': want ranks from 2 to 8"):
        load("h200x99")
    with pytest.raises(TopologyError, match=r"boxes from 1 to 2 or boxes from 3 to 64"):
        load("ndv2x65")


def test_a_wrong_name_is_answered_with_the_nearest():
    """Nothing near: with all patterns."""
    with pytest.raises(
        UnknownNameError,
        match=r"no machine named 'h20x4'; did you mean h200x4\? known: h200x4",
    ):
        load("h20x4")
    with pytest.raises(UnknownNameError, match=r"known: .*cpux\{ranks\}, dgx1, "):
        load("qqqqqq")


def test_packet_efficiency_and_rates_are_sane():
    """Costs of every listed machine are positive, and packets carry at most data."""
    for name in names():
        costs = load(name).costs
        assert 0 < costs.packet_efficiency <= 1
        assert costs.copy_gbytes_per_s > 0
        assert not math.isinf(costs.op_overhead_us)
