"""Ports with few partners, and ranks taken together: neither may promise too much."""

from __future__ import annotations

import itertools
import random
from collections import Counter
from fractions import Fraction

import numpy as np
import pytest
from tests.nightly import nightly

from stretto import topology
from stretto.synth import Budget, Demand, bound, from_machine, synthesize
from stretto.synth.bounds.clusters import clustered, clusterings
from stretto.synth.bounds.link_prices import gossip_prices
from stretto.synth.clock import SearchClock
from stretto.synth.general.partners import Lanes, partners
from stretto.synth.general.tree_packing import Pool
from stretto.synth.general.tree_source import TreeSource
from stretto.synth.network.hops import HopGraph
from stretto.synth.network.model import Network, NetworkLink
from stretto.synth.network.symmetry import find_symmetry


def network(seed, *, switches=3, symmetric=False):
    """Return a network that nobody would build; all ranks reach one another."""
    chance = random.Random(seed)
    n = chance.randint(4, 7)
    pairs = {(i, (i + 1) % n) for i in range(n)}
    for s in range(n, n + switches):
        for r in chance.sample(range(n), 3):
            pairs |= {(r, s), (s, r)}
    pairs |= {(s, t) for s, t in itertools.permutations(range(n, n + switches), 2)}
    pairs |= {tuple(chance.sample(range(n), 2)) for _ in range(n)}
    if symmetric:
        pairs |= {(b, a) for a, b in pairs}
    links = tuple(
        NetworkLink(src=a, dst=b, rate=Fraction(chance.choice((5, 10, 25))))
        for a, b in sorted(pairs)
    )
    return Network(
        name=f"odd{seed}",
        num_ranks=n,
        num_nodes=n + switches,
        links=links,
        box=(0,) * n,
        members=tuple(range(0, n, 1 + seed % 2)),
    )


def every_lane(net):
    """Return all pairs of a port out and a port in, of two ranks."""
    n = net.num_ranks
    outs = [e for e, k in enumerate(net.links) if k.src < n <= k.dst]
    ins = [e for e, k in enumerate(net.links) if k.dst < n <= k.src]
    return [(a, b) for a in outs for b in ins if net.links[a].src != net.links[b].dst]


@pytest.mark.parametrize("seed", range(6))
def test_with_every_lane_hops_are_the_cheapest(seed):
    """The same costs as without lanes, and every way costs what is said."""
    net = network(seed)
    prices = np.random.default_rng(seed).random(len(net.links)) + 0.01
    free = HopGraph(net).hops(prices)
    lanes = Lanes(net, every_lane(net)).hops(prices)

    for u, v in itertools.permutations(range(net.num_ranks), 2):
        assert lanes.cost[u, v] == pytest.approx(free.cost[u, v])
        if np.isfinite(lanes.cost[u, v]):
            way = lanes.way(u, v)
            nodes = [net.links[way[0]].src, *(net.links[e].dst for e in way)]
            assert sum(prices[e] for e in way) == pytest.approx(lanes.cost[u, v])
            assert (nodes[0], nodes[-1]) == (u, v)
            assert all(x >= net.num_ranks for x in nodes[1:-1])


def reached(net, lanes, rate, start):
    """Return who is reached over wires and lanes of at least a rate."""
    n, seen = net.num_ranks, {start}
    ends = [
        (k.src, k.dst) for k in net.links if max(k.src, k.dst) < n and k.rate >= rate
    ]
    for a, b in lanes:
        if min(net.links[a].rate, net.links[b].rate) >= rate:
            ends.append((net.links[a].src, net.links[b].dst))
    while True:
        more = {v for u, v in ends if u in seen} - seen
        if not more:
            return seen
        seen |= more


@pytest.mark.parametrize("most", [1, 2])
@pytest.mark.parametrize("seed", range(8))
def test_partners_join_all_whom_any_lanes_join(seed, most):
    """Whatever the flow was, and at every rate."""
    net = network(seed)
    every = every_lane(net)
    chance = random.Random(seed)
    flows = {lane: chance.random() for lane in chance.sample(every, len(every) // 2)}
    chosen = partners(net, flows, most)

    for rate in (5, 10, 25):
        for u, v in itertools.permutations(net.members, 2):
            both = v in reached(net, every, rate, u) and u in reached(
                net, every, rate, v
            )
            assert not both or v in reached(net, chosen, rate, u)


@pytest.mark.parametrize(
    ("name", "dead"), [("dgx_a100x2", ("2->ib0", "ib0->2")), ("dgx_h100x2", ())]
)
def test_one_partner_for_every_port_is_enough(name, dead):
    """Each port has one, and the trees carry as much as the bound allows."""
    net = from_machine(topology.load(name).degraded(dead_links=dead))
    demand = Demand(collective="all_gather", network=net, nbytes=10**9)
    limit = bound("all_gather", net)
    grove = TreeSource(demand, find_symmetry(net), limit, SearchClock(None))
    grove.improve()
    packing = grove._packing(1000, grove.choose())
    used = {way for way in packing.flows if len(way) > 1}
    ports = Counter(e for way in used for e in (way[0], way[-1]))

    assert max(ports.values()) == 1
    assert packing.fullest * float(limit.algbw) < 1.01


@pytest.mark.parametrize("seed", range(8))
def test_clusters_never_refuse_what_trees_do(seed):
    """Trees found for all_reduce carry no more than is proved of clusters."""
    net = network(seed, switches=seed % 3, symmetric=seed > 3)
    pool = Pool(net, None, spread=True, sums=True, nbytes=10**9)
    while pool.grow(SearchClock(None), 0.0, 30):
        pass
    proved = 0
    for cluster in clusterings(net, 10):
        small = clustered(net, cluster)
        if len(small.members) > 1:
            found = gossip_prices(small, Fraction(10**6))
            assert found is not None
            assert pool.fullest * float(found.rate(small)) >= 1 - 1e-6
            proved += 1

    assert proved


@pytest.mark.parametrize(
    ("name", "group", "us"),
    [
        ("dgx1", (1, 4, 6), 8000),
        ("mi250x", (4, 6, 8, 9, 12, 14), 16000 / 3),
        # all who relay are one with a member; the row's first rank is by itself
        ("torus4x4", (0, 1, 2, 3, 4), 10**6 / 3),
        ("dgx1", (0, 1, 2, 3, 4, 5), 32000 / 3),
    ],
)
def test_clusters_prove_what_single_ranks_do_not(name, group, us):
    """The bound is what trees reach: each cluster must hear of the others."""
    net = from_machine(topology.load(name)).group(group, relays=True)

    assert float(bound("all_reduce", net).us(10**9)) == pytest.approx(us, rel=1e-3)


@pytest.mark.parametrize("nbytes", [10**3, 3 * 10**4, 3 * 10**5])
@pytest.mark.parametrize("seed", nightly(range(4), 2))
def test_no_bound_refuses_an_exchange_of_everything(seed, nbytes):
    """Everybody sends all they have to everybody, at once: one hop, many bytes."""
    chance = random.Random(seed)
    n = 3 + seed
    links = tuple(
        NetworkLink(
            src=u,
            dst=v,
            rate=Fraction(chance.choice((5, 10, 25))),
            alpha=Fraction(chance.choice((5, 10, 20)), 10),
        )
        for u, v in itertools.permutations(range(n), 2)
    )
    whole = Network(
        name="mesh",
        num_ranks=n,
        num_nodes=n,
        links=links,
        box=(0,) * n,
        members=tuple(range(n)),
    )
    us = max(k.alpha + nbytes / (k.rate * 1000) for k in links)

    assert bound("all_reduce", whole).us(nbytes) <= us
    found = synthesize("all_reduce", whole, nbytes, budget=Budget.within(0.3))
    assert found.us >= found.bound_us > 0


def test_latency_and_bytes_count_together():
    """Four ranks, each with a link to each: one vector in, twice the latency."""
    net = from_machine(topology.load("dgx1")).group(range(4), relays=False)
    us = float(bound("all_reduce", net).us(65536))

    assert us > 1.7
