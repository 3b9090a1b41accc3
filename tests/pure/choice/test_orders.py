"""Orders of ranks in which a program keeps the links of a machine less busy."""

import itertools
import random

import pytest

from stretto import topology
from stretto.program import algorithms
from stretto.runtime.choice.orders import alike, better_order

GRID = """
about = "Ranks in a rectangle, each joined to its neighbours"
kind = "cpu"
[torus]
dims = [{dims}]
wrap = false
bandwidth_gbytes_per_s = 10
latency_us = 1.0
"""


@pytest.fixture
def grid(tmp_path):
    """Return what makes a rectangle of ranks."""

    def made(*dims):
        path = tmp_path / "grid.toml"
        path.write_text(GRID.format(dims=", ".join(map(str, dims))))
        return topology.load(str(path))

    return made


def hops(machine, ring):
    """Return how many links there are between neighbours in a ring."""
    pairs = zip(ring, (*ring[1:], ring[0]), strict=True)
    return [len(machine.route(a, b).links) for a, b in pairs]


@pytest.mark.parametrize(("dims", "far"), [((2, 3), 1), ((4, 4), 1), ((3, 3), 2)])
def test_a_ring_takes_single_links_where_there_is_such_a_ring(grid, dims, far):
    """Of an odd number of places there is none: one hop is of two."""
    machine = grid(*dims)
    n = machine.num_ranks
    program = algorithms.get("all_reduce/ring").build(n)
    order = better_order(program, machine, tuple(range(n)))
    assert sorted(order) == list(range(n))
    assert [far, *[1] * (n - 1)] == sorted(hops(machine, order), reverse=True)


@pytest.mark.parametrize("seed", range(5))
def test_numbers_that_were_mixed_up_are_found_again(grid, seed):
    """Wherever ranks sit, links are as busy as where they sit in a row."""
    machine = grid(6, 1)
    places = random.Random(seed).sample(range(6), 6)
    program = algorithms.get("broadcast/chain").build(6, root=places.index(0))
    order = better_order(program, machine, tuple(places))
    assert order[places.index(0)] == places.index(0)
    along = [places[order[(places.index(0) + i) % 6]] for i in range(6)]
    assert [0, 1, 2, 3, 4, 5] == along


def test_nothing_changes_where_nothing_gets_better(grid):
    """All send to all; or all places are alike; or the order is good as it is."""
    machine, places = grid(3, 3), tuple(range(9))
    one_shot = algorithms.get("all_gather/one_shot").build(9)
    assert places == better_order(one_shot, machine, places)
    ring = algorithms.get("all_reduce/ring").build(4)
    cpu = topology.load("cpux4")
    assert (0, 1, 2, 3) == better_order(ring, cpu, (0, 1, 2, 3))
    line = algorithms.get("reduce/chain").build(6)
    assert tuple(range(6)) == better_order(line, grid(6, 1), tuple(range(6)))


def test_places_are_alike_or_not(grid):
    """What counts is how long each way is."""
    assert alike(topology.load("cpux4"), (0, 1, 2, 3))
    assert not alike(grid(3, 1), (0, 1, 2))
    assert alike(grid(3, 1), (0, 2))
    assert alike(grid(3, 1), (0,))


def test_few_ranks_are_placed_as_well_as_all_orders_allow(grid):
    """Compared with all 720 for six: the busiest link is as busy."""
    machine, places = grid(2, 3), tuple(range(6))
    for name in (
        "all_reduce/ring",
        "all_gather/bruck",
        "all_reduce/double_binary_tree",
    ):
        program = algorithms.get(name).build(6)
        best = min(busiest(program, machine, o) for o in itertools.permutations(places))
        assert best == busiest(program, machine, better_order(program, machine, places))


def busiest(program, machine, order):
    """Return the chunks on the busiest link, counted by hand."""
    links = [0] * len(machine.links)
    for op in program.ops:
        for src in op.srcs:
            for link in machine.route(order[src.rank], order[op.dst.rank]).links:
                links[link] += src.stop - src.start
    return max(links)
