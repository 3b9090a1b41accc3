"""The programs kept for GPUs are what `stretto synth` writes today."""

from __future__ import annotations

from pathlib import Path

import pytest

from stretto import topology
from stretto.compiler.lower import lower
from stretto.compiler.plan import Schedule
from stretto.compiler.verify import verify, verify_plan
from stretto.synth import Budget, from_machine, load_sketch, synthesize

KEPT = Path(__file__).parents[3] / "benchmarks" / "synth_h200x4"


@pytest.mark.parametrize("collective", ["all_gather", "reduce_scatter", "all_reduce"])
@pytest.mark.parametrize("ring", [False, True])
def test_kept_programs_are_found_again(collective, ring):
    """Only the figures in the docstring may have been measured anew."""
    found = synthesize(
        collective,
        from_machine(topology.load("h200x4")),
        64 << 20,
        splits=(1,) if ring else (),
        budget=Budget(seconds=0),
        sketch=load_sketch("switch_ring") if ring else None,
    )
    file = KEPT / f"{collective}{'_ring' * ring}.py"
    kept = file.read_text(encoding="utf-8")
    program = found.program("h200x4_64m")
    plan = lower(verify(program), Schedule.parse("push bulk zero_copy"))

    assert kept.split('"""')[2:] == found.text("h200x4_64m").split('"""')[2:]
    assert verify_plan(plan)
