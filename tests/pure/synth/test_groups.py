"""Unequal parts, collectives among some ranks, machines that are in part broken."""

from __future__ import annotations

from fractions import Fraction

import pytest
from tests.checking.judge import program_is_right
from tests.nightly import nightly

from stretto import topology
from stretto.compiler.lower import lower
from stretto.compiler.plan import Schedule
from stretto.compiler.verify import verify, verify_plan
from stretto.errors import CallError, TopologyError
from stretto.synth import COLLECTIVES, Budget, bound, from_machine, synthesize
from stretto.synth.exact.steps import frontier
from stretto.synth.network.model import Network, NetworkLink
from stretto.synth.schedules.replay import replay

QUICK = Budget(seconds=0)
ROOTED = ("broadcast", "reduce", "gather", "scatter")


def net(name):
    """Return a machine's network."""
    return from_machine(topology.load(name))


UNEQUAL = ["all_gather", "all_to_all", "gather", "reduce_scatter", "scatter"]


@pytest.mark.parametrize("collective", UNEQUAL)
@pytest.mark.parametrize(
    ("machine", "gap"), nightly([("torus2x2", 0.08), ("h200x4", 0.4)], 2)
)
def test_unequal_parts_have_their_own_bound_and_program(machine, gap, collective):
    """A rank with a large part takes longer than equal parts do, and a bound knows."""
    network = net(machine)
    options = {"splits": (4,), "budget": Budget(seconds=1)}
    found = synthesize(collective, network, 10**9, weights=(5, 1, 1, 1), **options)
    equal = synthesize(collective, network, 10**9, **options)

    assert verify(found.program("it"))
    assert found.bound_us != equal.bound_us
    assert 0 <= found.gap < gap
    with pytest.raises(CallError, match="at least 1"):
        synthesize(collective, network, 10**6, weights=(0, 1, 1, 1))


@pytest.mark.parametrize("collective", COLLECTIVES)
@pytest.mark.parametrize(
    ("machine", "group"), [("dgx1", (0, 1, 6)), ("ndv2x2", (0, 1, 2, 3, 8))]
)
def test_a_group_with_relays_is_an_ordinary_program(collective, machine, group):
    """It is proved and right; relays hold nothing that they do not pass on."""
    network = net(machine).group(group, relays=True)
    options = {"root": 1} if collective in ROOTED else {}
    found = synthesize(collective, network, 10**6, splits=(1,), budget=QUICK, **options)
    program = found.program("it")
    moves = found.schedule.moves
    relays = {m.dst for m in moves} - set(group)

    assert verify(program)
    assert program_is_right(program, seed=1)
    for direction in ("push", "pull"):  # a relay may pass on what has been divided
        how = Schedule.parse(f"{direction} bulk zero_copy")
        assert verify_plan(lower(verify(program), how))
    assert group == program.params["members"]
    assert relays or machine != "dgx1"
    assert all(any(m.src == r for m in moves) for r in relays)
    assert f"members={group}".replace(" ", "") in str(program).split("\n")[0]


@pytest.mark.parametrize("collective", COLLECTIVES)
def test_a_group_of_one_has_nothing_to_do(collective):
    """It is said, with relays or without."""
    for relays in (False, True):
        alone = net("dgx1").group([3], relays=relays)
        with pytest.raises(TopologyError, match="1 rank; want two or more"):
            synthesize(collective, alone, 10**6, budget=QUICK)


def test_a_group_without_relays_is_a_program_of_its_own():
    """Its ranks are numbered anew, for a communicator of theirs."""
    alone = synthesize(
        "all_gather", net("dgx1").group([0, 1, 4, 5], relays=False), 10**6, budget=QUICK
    )

    assert 4 == verify(alone.program("it")).value.num_ranks


def test_relays_make_a_group_faster():
    """Half of a DGX-1 gathers a quarter faster with the links of the other half."""
    network = net("dgx1")
    us = [
        synthesize(
            "all_gather",
            network.group([0, 1, 2, 3], relays=relays),
            1 << 28,
            budget=QUICK,
        ).us
        for relays in (False, True)
    ]

    assert us[1] < us[0] * Fraction(77, 100)
    with pytest.raises(TopologyError, match=r"no way for chunks|nothing reaches"):
        synthesize("all_gather", network.group([0, 6], relays=False), 1, budget=QUICK)


def test_relays_that_add_up_save_what_enters_members():
    """Three ranks round a hub: a vector each will do, where a ring takes 4/3.

    A bound that counted on members alone to add would be above what is found.
    """
    ways = [(r, 3) for r in range(3)]
    ways += [(b, a) for a, b in ways]
    links = tuple(NetworkLink(src=a, dst=b, rate=Fraction(1)) for a, b in ways)
    hub = Network(
        name="hub",
        num_ranks=4,
        num_nodes=4,
        links=links,
        box=(0, 0, 0, 0),
        members=(0, 1, 2),
    )
    found = synthesize("all_reduce", hub, 1000, splits=(4,), budget=Budget(seconds=2))

    assert 1 == found.bound_us
    assert 1 < found.us < Fraction(4, 3)
    assert program_is_right(verify(found.program("it")).value, seed=4)


@pytest.mark.parametrize("chunks", [1, 2, 3])
def test_a_frontier_counts_on_relays(chunks):
    """Every point of it is a schedule that reaches all members."""
    network = net("dgx1").group([0, 1, 6], relays=True)
    limit = bound("broadcast", network, root=0)
    points = list(frontier("broadcast", network, limit, root=0, chunks=(chunks,)))

    assert points
    for point in points:
        assert point.rounds >= point.steps >= 2
        assert replay(point.schedule).us > 0


def test_relays_lend_their_nics():
    """Four GPUs of two boxes gather over all the rails that their boxes have."""
    network = net("dgx_a100x2")
    us = [
        synthesize(
            "all_gather",
            network.group([0, 4, 8, 12], relays=relays),
            1 << 28,
            splits=(8,),
            budget=QUICK,
        ).us
        for relays in (False, True)
    ]

    assert us[1] < us[0] / 2


@pytest.mark.parametrize(
    "collective",
    [
        pytest.param(c, marks=pytest.mark.slow if c == "all_reduce" else ())
        for c in COLLECTIVES
    ],
)
def test_images_of_ways_over_relays_are_ways(collective):
    """Symmetries send members to members, and relays to relays."""
    group = [0, 2, 5, 7, 8, 10, 13, 15]
    network = net("torus4x4").group(group, relays=True)
    root = {"root": 7} if collective in ROOTED else {}
    found = synthesize(collective, network, 10**6, splits=(2,), budget=QUICK, **root)
    symmetry = found.schedule.symmetry

    assert (1 if root else 4) == symmetry.order
    assert program_is_right(verify(found.program("it")).value, seed=3)


def test_unequal_parts_of_a_group_with_relays():
    """Weights are the members', in order."""
    network = net("dgx1").group([0, 1, 6], relays=True)
    found = synthesize("all_gather", network, 10**6, weights=(5, 1, 2), budget=QUICK)

    assert program_is_right(verify(found.program("it")).value, seed=2)
    with pytest.raises(CallError, match="one for each of 3 ranks"):
        synthesize("all_gather", network, 10**6, weights=(5, 1), budget=QUICK)


@pytest.mark.parametrize("collective", COLLECTIVES)
def test_a_degraded_machine_is_served(collective):
    """Dead links take the symmetry away, not the answer."""
    machine = topology.load("ndv2x2").degraded(dead_links=["0->1", "3->2"])
    found = synthesize(
        collective, from_machine(machine), 10**6, splits=(1,), budget=QUICK
    )
    dead = {(0, 1), (3, 2)}

    assert not dead & {(m.src, m.dst) for m in found.schedule.moves}
    assert verify(found.program("it"))


def test_a_dead_nic_sends_its_data_over_the_others():
    """GPU 1's NIC is gone, both ways: its data cross the network elsewhere."""
    whole = topology.load("dgx_h100x2")
    nic = [k.name for k in whole.links if 1 in (k.src, k.dst) and "rail" in k.name]
    network = from_machine(whole.degraded(dead_links=nic))
    found = synthesize("all_gather", network, 10**9, splits=(1,), budget=QUICK)
    crossing = {m.src for m in found.schedule.moves if m.src // 8 != m.dst // 8}

    assert 2 == len(nic)
    assert 1 not in crossing
    assert verify(found.program("it"))
