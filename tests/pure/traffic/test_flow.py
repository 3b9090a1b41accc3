"""Flows on a machine's links: two engines with the same results, weights and marks."""

import math
import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stretto import topology
from stretto.fabric import jit
from stretto.topology.traffic import Flows, Parcel

needs_numba = pytest.mark.skipif(bool(jit.missing()), reason=jit.missing() or "-")


def parcels(machine, many, gap_us, seed):
    """Return parcels between random ranks, and when each is ready."""
    draw, at, made = random.Random(seed), 0.0, []
    rate = machine.links[0].bandwidth_gbytes_per_s * 1e3
    for i in range(many):
        src, dst = draw.sample(range(machine.num_ranks), 2)
        at += draw.choice((0.0, gap_us))
        most = draw.choice((math.inf, rate * draw.choice((0.5, 0.1))))
        size = rate * draw.choice((100.0, draw.uniform(1, 300)))
        weight = draw.choice((1.0, 1.0, 2.0))
        made.append((Parcel(i, machine.route(src, dst), size, most, weight), at))
    return made


def ran(machine, made, **how):
    """Send all parcels, some queued behind others; return what left and when."""
    traffic, left = Flows(machine, **how), []
    for i, (parcel, at) in enumerate(made):
        traffic.send(parcel, ready_us=at, queue=i % 50)
    while traffic.next_us() < math.inf:
        left += traffic.step()
    return traffic, left


@needs_numba
@settings(max_examples=15)
@given(
    st.sampled_from(["torus4x4", "dgx1", "leaf_spine6x4", "cpux8", "fat_tree4"]),
    st.integers(1, 120),
    st.sampled_from([0.0, 3.0, 40.0]),
    st.integers(0, 1 << 20),
)
def test_compiled_rates_are_those_of_plain_python_to_the_last_bit(
    name, many, gap_us, seed
):
    """Numba changes no result, on any machine, with limits and weights."""
    machine = topology.load(name)
    plain = ran(machine, parcels(machine, many, gap_us, seed), compiled=False)
    fast = ran(machine, parcels(machine, many, gap_us, seed), compiled=True)

    assert plain[1] == fast[1]
    assert plain[0].link_nbytes == fast[0].link_nbytes


@needs_numba
def test_compiled_code_may_come_in_at_any_moment(monkeypatch):
    """Flows that are on their way, and ends that have become void, are taken over."""
    machine = topology.load("torus4x4")
    plain = ran(machine, parcels(machine, 300, 3.0, 5), compiled=False)[1]
    for when in (1, 37, 211):
        monkeypatch.setattr("stretto.topology.traffic.flow._MANY", when)
        assert plain == ran(machine, parcels(machine, 300, 3.0, 5))[1]


def test_more_flows_and_longer_ways_than_there_was_room_for():
    """Arrays grow while flows are on their way."""
    if jit.missing():
        pytest.skip(jit.missing())
    machine = topology.load("torus20x2")
    plain = ran(machine, parcels(machine, 700, 0.0, 2), compiled=False)[1]

    assert plain == ran(machine, parcels(machine, 700, 0.0, 2), compiled=True)[1]


@pytest.mark.parametrize("weight", [1.0, 2.0, 3.0])
def test_a_weight_is_a_share_of_the_neck(weight):
    """Of two on one link, one of weight w has w times the other's rate."""
    machine = topology.load("leaf_spine2x2")
    traffic = Flows(machine)
    for i, (src, w) in enumerate(((0, weight), (2, 1.0))):
        parcel = Parcel(i, machine.route(src, 1), 1e9, weight=w)
        traffic.send(parcel, ready_us=0.0, queue=i)
    traffic.next_us()
    traffic.step()
    first = traffic.next_us()

    assert first == pytest.approx(1e9 * (1 + weight) / weight / 6250)


def test_marks_come_where_more_is_wanted_than_a_link_has():
    """Two that want 90 % of a link each overfill it; two of 45 % do not."""
    machine = topology.load("leaf_spine2x2")
    found = []
    for share in (0.45, 0.9):
        traffic = Flows(machine, marks=True)
        for i, src in enumerate((0, 2)):
            parcel = Parcel(i, machine.route(src, 1), 50e6, share * 6250)
            traffic.send(parcel, ready_us=0.0, queue=i)
        while traffic.next_us() < math.inf:
            traffic.step()
        found.append(sum(c.marks for c in traffic.counts() if c.name == "leaf0->1"))
    packets, share = 100e6 / 1000, topology.Ports().ecn_max_share

    assert 0.0 == found[0]
    assert share * packets * 0.8 < found[1] <= share * packets * 1.01
