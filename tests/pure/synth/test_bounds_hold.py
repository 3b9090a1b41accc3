"""No bound lies above what somebody does.

Machines are drawn at random, programs for them searched without `stretto.synth`, timed
by the cost model's sentences alone.
"""

import itertools
import random
from dataclasses import replace
from fractions import Fraction

import pytest
from tests.checking.link_times import orders, program, slots, time_of, trees, ways
from tests.nightly import nightly

from stretto import topology
from stretto.compiler.verify import verify
from stretto.errors import StrettoError
from stretto.program import algorithms
from stretto.synth import COLLECTIVES, Network, bound, from_machine, written
from stretto.synth.network.model import NetworkLink


def machine(chance, most=5):
    """Return 3 to 5 ranks, some behind a slow port, with latencies that differ much.

    Half of the time a rank that is soon reached is far from the ports, and the other
    way round: the best first leg and the best second of two hops are different relays'.
    """
    n = chance.randint(3, most)
    behind = [v for v in range(n) if chance.random() < 0.4] or [0]
    port = {v: n + nth for nth, v in enumerate(behind)}
    late = [chance.choice((1, 45)) for _ in range(n)]
    is_crossed, fast = chance.random() < 0.8, chance.choice((10, 100))

    def alpha(u, v):
        if not is_crossed:
            return chance.choice((1, 10, 45))
        if v in port:
            return 46 - late[u] if u not in port else 45
        return late[v] if u not in port else 1

    links = [
        NetworkLink(
            src=u, dst=port.get(v, v), rate=Fraction(fast), alpha=Fraction(alpha(u, v))
        )
        for u, v in itertools.permutations(range(n), 2)
    ]
    links += [
        NetworkLink(src=s, dst=v, rate=Fraction(chance.choice((5, 10))))
        for v, s in port.items()
    ]
    if chance.random() < 0.5:
        links = [replace(k, src=k.dst, dst=k.src) for k in links]
    network = Network(
        name="drawn", num_ranks=n, num_nodes=n + len(port), links=tuple(links),
        box=(0,) * n, members=tuple(range(n)),
    )  # fmt: skip
    if n > 3 and chance.random() < 0.2:
        return network.group(range(n - 1), relays=True)
    return network


class Climb:
    """A program whose trees are changed as long as that helps."""

    def __init__(self, chance, collective, network, nbytes, pieces):
        self.chance, self.collective, self.network = chance, collective, network
        self.nbytes, self.known = nbytes, ways(network)
        wanted = slots(collective, network.members, 0)
        self.slots = list(enumerate(wanted)) * pieces
        self.best = [self.drawn(slot) for slot in self.slots]
        self.us = self.timed(self.best)

    def drawn(self, slot):
        nth, (root, wanted) = slot
        ranks = range(self.network.num_ranks)
        root = self.chance.choice(ranks) if root is None else root
        return nth, root, wanted, self.tree(root), self.tree(root)

    def tree(self, root):
        """Return a parent for every member but the root, and for some who relay."""
        n, members = self.network.num_ranks, self.network.members
        some = [v for v in range(n) if v in members or self.chance.random() < 0.3]
        placed, parents = [root], {}
        others = [v for v in some if v != root]
        for v in self.chance.sample(others, len(others)):
            parents[v] = self.chance.choice(placed)
            placed.append(v)
        return parents

    def timed(self, chosen):
        jobs = program(self.collective, self.network.members, chosen)
        order = self.chance.sample(range(len(jobs)), len(jobs))
        done, at = [], {i: nth for nth, i in enumerate(order)}
        left = set(order)
        while left:
            ready = [i for i in left if not left.intersection(jobs[i].after)]
            done.append(min(ready, key=at.__getitem__))
            left.discard(done[-1])
        return time_of(self.network, self.nbytes, jobs, done, self.known)

    def climb(self, rounds):
        for _ in range(rounds):
            tried = list(self.best)
            nth = self.chance.randrange(len(tried))
            if self.chance.random() < 0.8:
                tried[nth] = self.drawn(self.slots[nth])
            us = self.timed(tried)
            if us <= self.us:
                self.best, self.us = tried, us
        return self.us


CLIMBS = [
    *(("all_reduce", seed) for seed in (106, *range(400, 500))),
    *((c, seed) for seed in range(60) for c in COLLECTIVES),
]


@pytest.mark.parametrize(("collective", "seed"), nightly(CLIMBS, 97))
def test_no_program_goes_below_its_bound(collective, seed):
    """Trees that are changed piece by piece as long as that helps."""
    chance = random.Random(seed)
    network = machine(chance)
    nbytes = chance.choice((10**4, 10**5, 3 * 10**5))
    limit = bound(collective, network)
    us = Climb(chance, collective, network, nbytes, chance.randint(1, 3)).climb(300)

    term = limit.binding(nbytes)
    assert term.us(nbytes) <= us, (term.why, network.links)


def boxes(chance):
    """Return two boxes of 2 or 3 ranks over a slow switch: sums are made in both."""
    sizes = chance.choice(((2, 2), (2, 3), (3, 3)))
    n, at = sum(sizes), (0,) * sizes[0] + (1,) * sizes[1]
    rate, near, far = (chance.choice(some) for some in ((5, 10), (4, 20), (10, 30)))
    ends = [(v, n + at[v], 100, near) for v in range(n)]
    ends += [(v, n + 2, rate, far) for v in range(n)]
    links = [
        NetworkLink(src=a, dst=b, rate=Fraction(r), alpha=Fraction(late))
        for u, v, r, late in ends
        for a, b in ((u, v), (v, u))
    ]
    return Network(
        name="boxes", num_ranks=n, num_nodes=n + 3, links=tuple(links), box=at,
        members=tuple(range(n)),
    )  # fmt: skip


@pytest.mark.parametrize("seed", nightly(range(60), 20))
def test_hops_in_front_and_behind_count_each_by_itself(seed):
    """Between boxes, where that proves the most for some size; nothing goes below."""
    chance = random.Random(seed)
    network = boxes(chance)
    limit, decides = bound("all_reduce", network), 0
    for nbytes in (10**4, 5 * 10**4, 10**5, 2 * 10**5, 4 * 10**5):
        term = limit.binding(nbytes)
        if not term.proof.get("apart"):
            continue
        decides += 1
        for pieces in (1, 2, 4):
            us = Climb(chance, "all_reduce", network, nbytes, pieces).climb(100)
            assert term.us(nbytes) <= us, (term.why, network.links)

    assert decides or len(network.members) < 6


EXHAUSTED = [(c, seed) for seed in range(40) for c in COLLECTIVES if c != "all_to_all"]


@pytest.mark.parametrize(("collective", "seed"), nightly(EXHAUSTED, 97))
def test_nothing_that_three_ranks_can_do_goes_below_the_bound(collective, seed):
    """Every tree of every part, in every order."""
    chance = random.Random(seed)
    network = machine(chance, most=3)
    nbytes = chance.choice((10**3, 10**5))
    limit = bound(collective, network).us(nbytes)
    known = ways(network)
    choices = []
    for nth, (root, wanted) in enumerate(slots(collective, network.members, 0)):
        roots = network.members if root is None else (root,)
        forests = [
            (nth, r, wanted, there, back)
            for r in roots
            for there in trees(network.members, r)
            for back in (trees(network.members, r) if root is None else (there,))
        ]
        choices.append(forests)
    least = min(
        time_of(network, nbytes, jobs, order, known)
        for chosen in itertools.product(*choices)
        for jobs in (program(collective, network.members, chosen),)
        for order in orders(jobs)
    )

    assert limit <= least


WRITTEN = ("dgx1", "h200x4", "ndv2x2", "dgx_a100x2", "torus4x4", "dgx_h100x2")


@pytest.mark.parametrize("name", nightly(WRITTEN, 3))
def test_no_written_algorithm_goes_below_its_bound(name):
    """All that people wrote, on the links alone."""
    place = topology.load(name)
    network, timed = from_machine(place), 0
    for collective in COLLECTIVES:
        limit = bound(collective, network)
        for found in algorithms_of(collective, place.num_ranks):
            for nbytes in (1024, 65536, 10**6):
                us = written(found, place, nbytes=nbytes).time_us
                assert us >= float(limit.us(nbytes)) * (1 - 1e-9), found.value.name
                timed += 1

    assert timed > 30


def algorithms_of(collective, ranks):
    """Yield the shipped programs of a collective that so many ranks can run."""
    for name in algorithms.names():
        if name.startswith(f"{collective}/"):
            try:
                yield verify(algorithms.get(name).build(ranks))
            except StrettoError:
                continue
