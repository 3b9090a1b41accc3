"""Pipelined programs are written as loops over waves, and stay what they were."""

from __future__ import annotations

from dataclasses import replace

import pytest

from stretto import topology
from stretto.synth import Budget, Demand, bound, from_machine, synthesize
from stretto.synth.direct.repeating_trees import book_waves
from stretto.synth.direct.trees import pack_trees
from stretto.synth.emit.file import build, emit
from stretto.synth.schedules.repeating import in_waves
from stretto.synth.schedules.replay import replay
from stretto.verify import verify

QUICK = Budget(seconds=0)


def lines_of(found):
    """Return how long the file of a result is."""
    return len(found.text("it").splitlines())


@pytest.mark.parametrize(
    ("collective", "most"),
    [
        ("all_gather", 300),
        pytest.param("broadcast", 150, marks=pytest.mark.slow),
        pytest.param("reduce_scatter", 300, marks=pytest.mark.slow),
        pytest.param("all_reduce", 420, marks=pytest.mark.slow),
        pytest.param("reduce", 150, marks=pytest.mark.slow),
    ],
)
def test_a_pipelined_program_is_a_short_proved_file(collective, most):
    """As moves, one a line, the same program is ten times as long."""
    machine = "dgx1" if collective in ("broadcast", "reduce") else "ndv2x2"
    size = 10**9 if machine == "dgx1" else 10**6
    found = synthesize(
        collective, from_machine(topology.load(machine)), size, budget=QUICK
    )
    schedule = found.schedule
    flat = replace(schedule, waves=())
    program = found.program("it")
    moves = build(emit(flat, "it"), flat)

    assert lines_of(found) < most
    assert 5 * lines_of(found) < len(emit(flat, "it").splitlines())
    assert verify(program)
    assert len(moves.ops) == len(program.ops)
    assert found.us == replay(flat).us <= min(t.us for t in found.trials)


@pytest.mark.parametrize(
    "collective", ["all_gather", pytest.param("all_reduce", marks=pytest.mark.slow)]
)
def test_a_loop_is_its_moves_in_their_order(collective):
    """Operation by operation, so simulated times are the same, too."""
    network = from_machine(topology.load("ndv2x2"))
    found = synthesize(collective, network, 10**6, budget=QUICK)
    flat = replace(found.schedule, waves=())

    assert found.schedule.waves
    assert found.program("it").ops == build(emit(flat, "it"), flat).ops


@pytest.mark.parametrize("machine", ["dgx1", "mi250x"])
def test_trees_in_waves_are_as_fast_as_the_links_allow(machine):
    """Each wave takes what the fullest link needs, so the gap halves with its size."""
    network = from_machine(topology.load(machine))
    forest, gaps = pack_trees(network), []
    limit = bound("all_gather", network)
    for pieces in (8, 16):
        demand = Demand(
            collective="all_gather",
            network=network,
            nbytes=10**9,
            split=forest.trees * pieces,
        )
        found = book_waves(forest, demand, pieces=pieces)
        gaps.append(replay(found, bound=limit).us / limit.us(10**9) - 1)

    assert gaps[1] < 0.08
    assert gaps[1] == pytest.approx(gaps[0] / 2, rel=0.02)
    assert len(found.folded) == 16 * len(found.waves)


def test_single_moves_are_no_loop():
    """What is not regular stays a table of its moves."""
    network = from_machine(topology.load("ndv2x2"))
    found = synthesize("all_gather", network, 10**6, splits=(2,), budget=QUICK)

    assert not found.schedule.waves
    assert in_waves(found.schedule, found.us) is found.schedule
