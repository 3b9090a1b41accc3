"""Trees are weighed by when their hops can be on a link."""

from __future__ import annotations

import time

import numpy as np
import pytest

from stretto.synth import Budget, clock, from_machine, synthesize
from stretto.synth.general.hop_times import Tree, hop_times, hops_at_once
from stretto.topology import Costs, Link, Machine, Switch


@pytest.fixture(autouse=True)
def own_time(monkeypatch):
    """Budgets are of this process's own time: tests share the computer."""
    monkeypatch.setattr(clock, "now", time.process_time)


def test_what_is_before_a_hop_and_behind_it_closes_its_links():
    """Down a chain of three, and up: latency in us, and hops of a unit of data."""
    chain = Tree(((0, 1, (0,)), (1, 2, (1,)), (2, 3, (2,))), sums=False, top=(0,))
    back = Tree(((1, 0, (0,)), (2, 1, (1,)), (3, 2, (2,))), sums=True, top=(0,))
    times, depth = hop_times(chain, lambda way: (1.0 + way[0], 0.5))
    turned, _ = hop_times(back, lambda way: (1.0 + way[0], 0.5))

    assert depth == (6.0, 1.5)
    assert times == [
        ((0.0, 0.0), (6.0, 1.0)), ((1.0, 0.5), (5.0, 0.5)), ((3.0, 1.0), (3.0, 0.0))
    ]  # fmt: skip
    assert turned == [
        ((5.0, 1.0), (1.0, 0.0)), ((3.0, 0.5), (3.0, 0.5)), ((0.0, 0.0), (6.0, 1.0))
    ]  # fmt: skip


def test_ranks_that_meet_wait_for_the_slower_side():
    """The root's own side counts as much as the other's: half a step of the meeting."""
    ways = ((1, 0, (0,)), (2, 0, (1,)), (3, 2, (1,)))
    _, depth = hop_times(Tree(ways, sums=True, top=(0, 1)), lambda way: (2.0, 1.0))

    assert depth == (1.0 + 2.0 + 2.0, 0.5 + 1.0 + 1.0)


def test_hops_of_a_link_are_told_apart_by_when_they_can_be():
    """Those that begin late, those that end early, and all of them."""
    at = np.array([5, 5, 7])
    before, behind = np.array([0.0, 2.0, 1.0]), np.array([3.0, 1.0, 1.0])
    found = {tuple(hops): late for hops, late in hops_at_once(at, before, behind)}

    assert found == {(0, 1): 1.0, (0,): 3.0, (1,): 3.0, (2,): 2.0}


@pytest.mark.parametrize(
    ("name", "collective", "us"),
    [("wide", "all_reduce", 4.5), ("tree", "all_gather", 5.0)],
)
def test_deep_trees_go_first_and_flat_ones_last(name, collective, us):
    """Two boxes whose ranks meet, and a fat tree: 5.16 us and 5.09 without."""
    at = [r // 8 if name == "wide" else r // 4 for r in range(16)]
    ends = [(r, 16 + at[r], 300.0 if name == "wide" else 25.0, 0.5) for r in range(16)]
    if name == "wide":
        ends += [(r, 18, 50.0, 1.0) for r in range(16)]
    else:
        ends += [(16 + i, 20, 50.0, 0.5) for i in range(4)]
    links = tuple(
        Link(
            src=a, dst=b, bandwidth_gbytes_per_s=rate, latency_us=late, name=f"{a}-{b}"
        )
        for u, v, rate, late in ends
        for a, b in ((u, v), (v, u))
    )  # fmt: skip
    network = from_machine(
        Machine(
            name=name,
            kind="gpu",
            num_ranks=16,
            links=links,
            switches=tuple(Switch(name=f"s{i}") for i in range(max(at) + 2)),
            ranks_per_box=16,
            costs=Costs(background_puts=True),
        )
    )
    found = synthesize(
        collective, network, 65536, splits=(16,), budget=Budget.within(4)
    )

    assert found.bound_us <= found.us < us
