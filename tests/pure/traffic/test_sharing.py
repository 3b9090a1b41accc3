"""Rates are max-min fair, whatever order flows come and go in."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stretto.topology.traffic.sharing import LinkShare, Sharing


def start(capacity, flows, now=0.0):
    """Return the sharing and its flows, given as (links, nbytes) or with a limit."""
    sharing = Sharing(capacity)
    made = [
        LinkShare(links, n, *(more or (math.inf,)), None) for links, n, *more in flows
    ]
    for flow in made:
        sharing.add(flow, now)
    sharing.settle(now)
    return sharing, made


def test_a_flow_alone_has_the_slowest_of_its_links():
    """Its end is its bytes over that rate."""
    _, (flow,) = start([5.0, 2.0], [((0, 1), 10.0)])

    assert (2.0, 5.0) == (flow.rate, flow.ends_at)


def test_a_sender_s_own_limit_holds():
    """What one flow leaves, another takes."""
    _, (slow, fast) = start([10.0], [((0,), 1.0, 3.0), ((0,), 1.0)])

    assert (3.0, 7.0) == (slow.rate, fast.rate)


def test_what_a_narrow_link_leaves_is_shared_by_the_others():
    """The textbook example: 1 on the narrow link, 9 for the flow beside it."""
    _, (both, narrow, wide) = start(
        [10.0, 2.0], [((0, 1), 9.0), ((1,), 9.0), ((0,), 9.0)]
    )

    assert (1.0, 1.0, 9.0) == (both.rate, narrow.rate, wide.rate)


def test_a_flow_that_ends_gives_its_share_back():
    """What was already sent counts, and the new end is told."""
    sharing, (one, two) = start([10.0], [((0,), 100.0), ((0,), 100.0)])
    assert (20.0, 20.0) == (one.ends_at, two.ends_at)

    sharing.remove(one)
    changed = sharing.settle(10.0)
    assert [two] == changed
    assert (10.0, 15.0) == (two.rate, two.ends_at)


def test_flows_that_share_nothing_are_left_alone():
    """Only what is joined to a change, directly or through others, is told anew."""
    sharing, (a, b, c) = start(
        [6.0, 6.0, 6.0], [((0,), 9.0), ((0, 1), 9.0), ((2,), 9.0)]
    )
    sharing.remove(a)

    assert [b] == sharing.settle(1.0)
    assert 6.0 == c.rate


@st.composite
def scenes(draw):
    num_links = draw(st.integers(1, 5))
    capacity = draw(st.lists(st.integers(1, 9), min_size=num_links, max_size=num_links))
    links = st.sets(st.integers(0, num_links - 1), min_size=1).map(tuple)
    limit = st.one_of(st.just(math.inf), st.integers(1, 9).map(float))
    flows = draw(st.lists(st.tuples(links, limit), min_size=1, max_size=8))
    ends = draw(st.lists(st.integers(0, len(flows) - 1), unique=True))
    return [float(c) for c in capacity], flows, ends


@given(scenes())
def test_rates_are_feasible_and_everybody_meets_a_limit(scene):
    """No link is overfull, and each flow is at its own limit or at that of a full link.

    On that link nobody has more: this is what max-min fairness means.
    """
    capacity, flows, ends = scene
    sharing, made = start(capacity, [(ks, 1e9, limit) for ks, limit in flows])
    for i in ends[:-1]:
        sharing.remove(made[i])
        sharing.settle(0.0)
    alive = [f for i, f in enumerate(made) if i not in ends[:-1]]

    load = [sum(f.rate for f in alive if k in f.links) for k in range(len(capacity))]
    assert all(u <= c * (1 + 1e-9) for u, c in zip(load, capacity, strict=True))
    for flow in alive:
        full = [k for k in flow.links if load[k] >= capacity[k] * (1 - 1e-9)]
        most = [max(f.rate for f in alive if k in f.links) for k in full]
        at_limit = flow.rate >= flow.at_most * (1 - 1e-9)
        assert at_limit or any(flow.rate >= m * (1 - 1e-9) for m in most)


@given(scenes())
def test_settling_step_by_step_equals_settling_at_once(scene):
    """Local updates end where a fresh start ends."""
    capacity, flows, ends = scene
    stepwise = Sharing(capacity)
    made = [LinkShare(links, 1e9, limit, None) for links, limit in flows]
    for flow in made:
        stepwise.add(flow, 0.0)
        stepwise.settle(0.0)
    for i in ends:
        stepwise.remove(made[i])
        stepwise.settle(0.0)
    left = [i for i in range(len(flows)) if i not in ends]
    _, fresh = start(capacity, [(flows[i][0], 1e9, flows[i][1]) for i in left])

    for i, flow in zip(left, fresh, strict=True):
        assert made[i].rate == pytest.approx(flow.rate)
