"""Ends of flows: plain Python and compiled code agree on them to the last bit."""

import math
import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stretto import topology
from stretto.fabric import jit
from stretto.topology.routes import Route
from stretto.topology.traffic import Flows, Parcel
from stretto.topology.traffic.ends import CompiledEnds, PlainEnds
from stretto.topology.traffic.sharing import Sharing

needs_numba = pytest.mark.skipif(bool(jit.missing()), reason=jit.missing() or "-")
MOMENT_US = 1e-9


def scene(seed, links, flows, alike):
    """Return capacities, and parcels over some links each; many meet on the first.

    Alike: links of one capacity and flows of one size, so that much happens at once.
    """
    draw = random.Random(seed)
    capacity = [8.0 if alike else draw.choice((8.0, 8.0, 3.0, 20.0))] * links
    made = []
    for i in range(flows):
        way = draw.sample(range(1, links), draw.randint(1, min(5, links - 1)))
        way = [*way[:-1], 0] if draw.random() < 0.1 else way
        most = draw.choice((math.inf, math.inf, 2.0, draw.uniform(0.1, 4)))
        weight = draw.choice((1.0, 1.0, 2.0, 0.1, draw.uniform(0.1, 3)))
        rules = (math.inf, 1.0) if alike and seed % 2 else (most, weight)
        nbytes = 100.0 if alike else draw.uniform(1, 200)
        made.append(Parcel(i, Route(tuple(way), 0.0, ()), nbytes, *rules))
    return capacity, made


def ends(kind, capacity, parcels, at_once):
    """Let some begin at once whenever some have ended; return all ends, and ages."""
    flows, now, waiting, found = kind(capacity), 0.0, parcels[::-1], []
    while True:
        for _ in range(min(at_once, len(waiting))):
            flows.add(waiting.pop(), now)
        flows.settle(now)
        now = flows.next_us()
        if now == math.inf:
            return found
        over = flows.due(now + MOMENT_US)
        found += [(when.hex(), age, parcel.what) for when, age, parcel in over]
        for _, _, parcel in over:
            flows.remove(parcel)


@needs_numba
@settings(max_examples=40, deadline=None)
@given(
    st.integers(0, 1 << 20),
    st.integers(2, 130),
    st.integers(1, 150),
    st.booleans(),
    st.sampled_from((1, 3, 40, 150)),
)
def test_compiled_ends_are_those_of_plain_python(seed, links, flows, alike, at_once):
    """Ages, too: the same rates have changed, in the same order."""
    plain = ends(PlainEnds, *scene(seed, links, flows, alike), at_once)

    assert flows == len(plain)
    assert plain == ends(CompiledEnds, *scene(seed, links, flows, alike), at_once)


@needs_numba
@pytest.mark.parametrize("seed", [1, 2])
def test_they_agree_where_much_is_filled_again_and_stops_at_once(seed, monkeypatch):
    """Hundreds of flows on links alike: many stop in one round, in fill after fill."""
    fills, settled, together = [], [], []
    fill, settle = Sharing._fill, Sharing.settle

    def noted_fill(self, flows):
        rates, necks = fill(self, flows)
        fills.append(len(rates))
        shares = [rate / flow.weight for flow, rate in rates.items()]
        level = max(set(shares), key=shares.count)
        at = {
            necks[f] for f, share in zip(rates, shares, strict=True) if share == level
        }
        together.append(len(at))
        return rates, necks

    def noted_settle(self, now):
        before = len(fills)
        changed = settle(self, now)
        settled.append(len(fills) - before)
        return changed

    monkeypatch.setattr(Sharing, "_fill", noted_fill)
    monkeypatch.setattr(Sharing, "settle", noted_settle)
    plain = ends(PlainEnds, *scene(seed, 100, 400, True), 8)

    assert plain == ends(CompiledEnds, *scene(seed, 100, 400, True), 8)
    assert max(settled) >= 4
    assert max(together) >= 8


@needs_numba
def test_a_link_takes_more_flows_than_it_had_places_for():
    """Its part moves, and all are laid anew when there is no more room to move to."""

    def hot():
        way = [Route((0, i % 40 + 1), 0.0, ()) for i in range(900)]
        return [8.0] * 41, [Parcel(i, w, 5.0 + i % 7) for i, w in enumerate(way)]

    assert ends(PlainEnds, *hot(), 300) == ends(CompiledEnds, *hot(), 300)


@pytest.mark.parametrize("compiled", [False, pytest.param(True, marks=needs_numba)])
def test_ends_that_became_void_are_passed_over(compiled):
    """Every step begins or ends a transfer, however often rates have changed."""
    machine = topology.load("torus4x4")
    traffic, draw, steps, left = (
        Flows(machine, compiled=compiled),
        random.Random(3),
        0,
        0,
    )
    for i in range(200):
        src, dst = draw.sample(range(16), 2)
        parcel = Parcel(i, machine.route(src, dst), draw.uniform(1e6, 9e6))
        traffic.send(parcel, ready_us=i * 3.0, queue=i)
    while traffic.next_us() < math.inf:
        left += len(traffic.step())
        steps += 1

    assert 200 == left
    assert steps <= 400
