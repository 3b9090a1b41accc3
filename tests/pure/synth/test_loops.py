"""Pipelined programs are written as loops over waves, and stay what they were."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction

import pytest

from stretto import topology
from stretto.compiler.verify import verify
from stretto.synth import Budget, from_machine, synthesize
from stretto.synth.emit.file import build, emit
from stretto.synth.schedules.repeating import in_waves
from stretto.synth.schedules.replay import replay

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
    assert found.us == replay(flat).us
    assert found.us <= min(t.us for t in found.trials) * Fraction(101, 100)


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


def test_single_moves_are_no_loop():
    """What is not regular stays a table of its moves."""
    network = from_machine(topology.load("ndv2x2"))
    found = synthesize("all_gather", network, 10**6, splits=(2,), budget=QUICK)

    assert not found.schedule.waves
    assert in_waves(found.schedule, found.us) is found.schedule
