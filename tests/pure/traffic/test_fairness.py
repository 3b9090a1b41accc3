"""Rates after every beginning and end, on random machines with random flows.

They are those of a filling from nothing in exact fractions that shares no code with
the engine. Compiled code has them, and all else it knows of a flow, to the last bit.
"""

import math
import random
from fractions import Fraction

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.nightly import at_night, examples

from stretto import topology
from stretto.fabric import jit
from stretto.topology.routes import Route
from stretto.topology.traffic import Parcel
from stretto.topology.traffic.ends import CompiledEnds, PlainEnds

needs_numba = pytest.mark.skipif(bool(jit.missing()), reason=jit.missing() or "-")
MOMENT_US = 1e-9
MACHINES = ("torus4x4", "dgx_h100x4", "leaf_spine6x4", "clos2x8", "cpux8")


def roads(machine, draw):
    """Return capacities of links, and what draws a way over some of them."""
    if machine != "links":
        made = topology.load(machine)
        ranks = range(made.num_ranks)
        return [
            k.bandwidth_gbytes_per_s for k in made.links
        ], lambda: made.route(*draw.sample(ranks, 2)).links
    links, most = draw.randint(1, 60), draw.randint(1, 12)
    capacity = [draw.choice((8.0, 8.0, 3.0, draw.uniform(1, 20))) for _ in range(links)]
    # a few links are on many ways
    return capacity, lambda: tuple(
        {int(links * draw.random() ** 3): 0 for _ in range(draw.randint(1, most))}
    )


def scene(seed, machine, flows, alike, *, limits, weights):
    """Return capacities and parcels; alike: of one size, so that many end at once."""
    draw = random.Random(seed)
    capacity, way = roads(machine, draw)
    parcels, most = [], max(capacity)
    for i in range(flows):
        limit = draw.choice((math.inf, most / 4, most * draw.random() + 0.01))
        weight = draw.choice((1.0, 2.0, 0.1, draw.uniform(0.1, 3)))
        nbytes = 100.0 if alike else draw.uniform(1, 200)
        rules = limit if limits else math.inf, weight if weights else 1.0
        parcels.append(Parcel(i, Route(way(), 0.0, ()), nbytes, *rules))
    return capacity, parcels


SCENES = st.builds(
    scene,
    st.integers(0, 1 << 20),
    st.sampled_from(("links", "links", *MACHINES)),
    st.integers(1, 60),
    st.booleans(),
    limits=st.booleans(),
    weights=st.booleans(),
)
BURSTS = st.sampled_from((1, 2, 7, 60))


def lives(ends, parcels, burst):
    """Let flows begin and end; yield the time whenever all is settled.

    Some begin before anything ends, some when something has, some together with an end.
    """
    now, waiting, turn = 0.0, parcels[::-1], 0
    while True:
        for _ in range(min(burst, len(waiting))):
            ends.add(waiting.pop(), now)
        ends.settle(now)
        yield now
        turn += 1
        first = ends.next_us()
        if waiting and turn % 3:
            now += (first - now) / 2
            continue
        now = first
        if now == math.inf:
            return
        for _, _, parcel in ends.due(now + MOMENT_US):
            ends.remove(parcel)
        if turn % 2:
            ends.settle(now)
            yield now


def known(ends):
    """Return what is known of every flow, exactly: its rate, its neck, its end."""
    if isinstance(ends, PlainEnds):
        facts = {
            f.owner.what: (f.rate, f.left, f.since, f.ends_at, f.neck, f.age)
            for f in ends.flows.values()
        }
    else:
        facts = {}
        for row in ends._rows.values():
            share, flow = ends._shares[row], ends._flows[row]
            told = share["rate"], flow["left"], flow["since"], ends._ends[row]
            facts[ends._parcels[row].what] = (*told, share["neck"], flow["age"])
    return {
        what: (*(float(f).hex() for f in told[:4]), *map(int, told[4:]))
        for what, told in facts.items()
    }


def fair(capacity, flows):
    """Return max-min fair rates: all rise until something stops them."""
    rates, risen = {}, set(flows)
    while risen:
        room = [Fraction(c) for c in capacity]
        for f, rate in rates.items():
            for link in f.links:
                room[link] -= rate
        weights = [Fraction(0)] * len(capacity)
        for f in risen:
            for link in f.links:
                weights[link] += Fraction(f.weight)
        levels = [r / w if w else math.inf for r, w in zip(room, weights, strict=True)]
        stops = {
            f: min(
                *(levels[link] for link in f.links),
                math.inf
                if f.at_most == math.inf
                else Fraction(f.at_most) / Fraction(f.weight),
            )
            for f in risen
        }
        least = min(stops.values())
        for f in [f for f in risen if stops[f] == least]:
            rates[f] = least * Fraction(f.weight)
            risen.discard(f)
    return rates


@settings(max_examples=examples(100), deadline=None)
@given(SCENES, BURSTS)
def test_rates_are_max_min_fair_after_every_event(scene, burst):
    """Whatever has begun and ended before, and in whatever order."""
    capacity, parcels = scene
    ends = PlainEnds(capacity)
    for _ in lives(ends, parcels, burst):
        flows = list(ends.flows.values())
        due = fair(capacity, flows)

        assert [f.rate for f in flows] == pytest.approx([float(due[f]) for f in flows])


@needs_numba
@settings(max_examples=examples(120), deadline=None)
@given(SCENES, BURSTS)
def test_compiled_code_knows_the_same_after_every_event(scene, burst):
    """Rates, bytes left, necks, ends and ages: to the last bit."""
    capacity, parcels = scene
    plain, fast = PlainEnds(capacity), CompiledEnds(capacity)
    both = zip(lives(plain, parcels, burst), lives(fast, parcels, burst), strict=True)
    for one, other in both:
        assert one.hex() == other.hex()
        assert known(plain) == known(fast)


@needs_numba
@pytest.mark.parametrize(
    ("machine", "rules"),
    [
        at_night("torus8x8", {"limits": False, "weights": False}),
        ("torus8x8", {"limits": True, "weights": True}),
        ("clos8x8", {"limits": True, "weights": False}),
    ],
)
def test_so_it_does_with_hundreds_at_once(machine, rules):
    """Many blocks of levels and of ends, routes of many lengths, fill after fill."""
    capacity, parcels = scene(5, machine, 500, machine == "clos8x8", **rules)
    plain, fast = PlainEnds(capacity), CompiledEnds(capacity)
    both = zip(lives(plain, parcels, 50), lives(fast, parcels, 50), strict=True)
    for one, other in both:
        assert one.hex() == other.hex()
        assert known(plain) == known(fast)
    assert not known(fast)
