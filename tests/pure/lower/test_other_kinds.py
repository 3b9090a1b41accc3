"""What is given in place of a program, a proof, a plan or a machine is named."""

from __future__ import annotations

import pytest

from stretto import algorithms, topology
from stretto.errors import CallError
from stretto.executors.sim import simulate
from stretto.lower import lower
from stretto.plan import Schedule
from stretto.verify import verify, verify_plan

ALGORITHM = algorithms.get("all_gather/ring")
PROGRAM = ALGORITHM.build(2)
PROVED = verify(PROGRAM)
PLAN = lower(PROVED, Schedule.parse("push bulk"))
PROVED_PLAN = verify_plan(PLAN)
MACHINE = topology.load("h200x2")


@pytest.mark.parametrize(
    ("call", "right"),
    [
        (verify, [PROGRAM]),
        (verify_plan, [PLAN]),
        (lower, [PROVED, Schedule.parse("push bulk")]),
        (
            lambda plan, machine: simulate(plan, machine, nbytes=64),
            [PROVED_PLAN, MACHINE],
        ),
    ],
    ids=["verify", "verify_plan", "lower", "simulate"],
)
def test_each_step_names_what_it_got_and_what_it_wants(call, right):
    """A step that was left out, or a text, is one sentence at every argument."""
    call(*right)
    for at in range(len(right)):
        for other in (ALGORITHM, PROGRAM, PROVED, PLAN, PROVED_PLAN, "h200x2", None):
            if type(other) is type(right[at]):
                continue
            given = [*right[:at], other, *right[at + 1 :]]
            with pytest.raises(CallError, match=r"^[a-z_]+: got .*; want a "):
                call(*given)


@pytest.mark.parametrize("shown", [PROGRAM, PLAN, PROVED, PROVED_PLAN])
def test_what_is_shown_is_one_line(shown):
    """Python shows what it is; `str` is all of it where there is more."""
    assert "all_gather/ring for 2 ranks" in repr(shown)
    assert len(repr(shown)) < 100
