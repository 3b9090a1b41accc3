"""Machines as values: routes, degradation, and what is refused."""

import pytest

from stretto.errors import BoundsError, TopologyError, UnknownNameError
from stretto.topology import Costs, Link, Machine, Switch, load


def link(src, dst, *, rate=1.0, latency=1.0):
    return Link(
        src=src,
        dst=dst,
        bandwidth_gbytes_per_s=rate,
        latency_us=latency,
        name=f"{src}->{dst}",
    )


def machine(num_ranks, links, **more):
    more.setdefault("ranks_per_box", num_ranks)
    return Machine(
        name="m", kind="gpu", num_ranks=num_ranks, links=tuple(links), **more
    )


def test_switches_forward_before_ranks_relay():
    """A long way over switches is taken before a short one through another rank."""
    m = machine(
        3,
        [link(0, 1), link(1, 2), link(0, 3, latency=9), link(3, 2, latency=9)],
        switches=(Switch(name="s"),),
    )

    assert ((2, 3), 18.0, ()) == m.route(0, 2)


def test_ranks_relay_when_there_is_no_other_way():
    """The relays of a route are named, without its ends."""
    m = machine(4, [link(0, 1), link(1, 2), link(2, 3)])

    assert ((0, 1, 2), 3.0, (1, 2)) == m.route(0, 3)


def test_of_equal_ways_the_one_with_less_latency_then_wider_links_is_taken():
    """Latency, then hops, then the time a byte spends."""
    slow = [link(0, 1, latency=2), link(1, 3, latency=1)]
    quick = [link(0, 2, latency=1), link(2, 3, latency=1)]
    assert (2,) == machine(4, slow + quick).route(0, 3).relays

    narrow = [link(0, 1, rate=1), link(1, 3, rate=9)]
    wide = [link(0, 2, rate=2), link(2, 3, rate=9)]
    assert (2,) == machine(4, narrow + wide).route(0, 3).relays


def test_routes_are_found_only_when_asked_for():
    """Loading a machine of a thousand ranks computes no route."""
    m = load("dgx_h100x128")
    assert 0 == len(m._router._routes)

    m.route(0, 8)
    assert 1 == len(m._router._routes)


def test_a_rank_reaches_itself_over_nothing():
    """The route to oneself is empty."""
    assert ((), 0.0, ()) == load("dgx1").route(3, 3)


def test_a_route_names_the_ranks_that_exist():
    """A rank outside the machine is an error that says which there are."""
    with pytest.raises(BoundsError, match=r"machine dgx1: no rank 8; it has 0 to 7"):
        load("dgx1").route(0, 8)


def test_a_dead_link_is_avoided():
    """On DGX-1 the way from 0 to 1 leads through 2 once the link is dead."""
    m = load("dgx1").degraded(dead_links=["0->1"])

    assert 2 == len(m.route(0, 1).links)
    assert 1 == len(m.route(1, 0).links)


def test_where_no_way_is_left_that_is_said():
    """Behind one switch a rank whose link is dead cannot send."""
    m = load("h200x4").degraded(dead_links=["1->nvswitch"])

    with pytest.raises(TopologyError, match=r"no way from rank 1 to rank 3"):
        m.route(1, 3)
    assert 2 == len(m.route(3, 1).links)


def test_a_slow_link_is_slower_by_its_factor():
    """Other links, and the machine it was made from, are unchanged."""
    m = load("h200x4")
    slow = m.degraded(slow={"nvswitch->2": 5})

    def rate(of):
        return of.links[of.link_named("nvswitch->2")].bandwidth_gbytes_per_s

    assert 390 / 5 == rate(slow)
    assert 390 == rate(m)


def test_a_link_cannot_be_made_faster_or_invented():
    """Factors are at least one; a wrong name is answered with the nearest."""
    m = load("h200x4")

    with pytest.raises(TopologyError, match=r"slowed by 0.5; want 1 or more"):
        m.degraded(slow={"nvswitch->2": 0.5})
    with pytest.raises(UnknownNameError, match=r"no link named '2->switch'.*2->nvsw"):
        m.degraded(dead_links=["2->switch"])


def test_dead_ranks_relay_nothing():
    """The way from 0 to 5 on DGX-1 avoids a dead rank, and adds up over calls."""
    m = load("dgx1")
    first = m.route(0, 5).relays[0]
    degraded = m.degraded(dead_ranks=[first])

    assert first not in degraded.route(0, 5).relays
    assert {first, 6} == degraded.degraded(dead_ranks=[6]).dead_ranks


def test_a_machine_refuses_what_makes_no_sense():
    """Each complaint says what was got and what is wanted."""
    with pytest.raises(TopologyError, match=r"3 ranks in boxes of 2; want a whole"):
        machine(3, [], ranks_per_box=2)
    with pytest.raises(TopologyError, match=r"joins 0 to 7; want two of the nodes 0 t"):
        machine(2, [link(0, 7)])
    with pytest.raises(TopologyError, match=r"link 0->1: given twice"):
        machine(2, [link(0, 1), link(0, 1)])
    with pytest.raises(TopologyError, match=r"-1.0 GB/s, 1.0 us; want neither below"):
        machine(2, [link(0, 1, rate=-1.0)])
    with pytest.raises(TopologyError, match=r"kind='tpu'; want 'gpu' or 'cpu'"):
        Machine(name="m", kind="tpu", num_ranks=1, links=(), ranks_per_box=1)
    with pytest.raises(TopologyError, match=r"symmetry \(0, 0\) does not permute"):
        machine(2, [], symmetries=((0, 0),))
    with pytest.raises(TopologyError, match=r"dead ranks \[5\]; want ranks below 2"):
        machine(2, [], dead_ranks=frozenset({5}))


def test_costs_default_to_the_pure_link_model():
    """Without costs nothing but links takes time."""
    costs = Costs()

    assert 0 == costs.launch_us + costs.op_overhead_us + costs.flag_latency_us
    assert 1 == costs.packet_efficiency
