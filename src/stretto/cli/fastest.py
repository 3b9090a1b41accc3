"""The plan of a program that the simulator finds fastest, of a few."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, TypeAlias

from stretto.compiler.lower import lower
from stretto.compiler.plan import ProvedPlan, Schedule
from stretto.compiler.verify import verify_plan
from stretto.errors import PlanError
from stretto.executors import sim
from stretto.program.ir import Program, Verified, undisturbed
from stretto.topology import Machine
from stretto.trace import Recorder

Timed: TypeAlias = tuple[ProvedPlan, Any]
"""A plan, and what the simulator says of it."""

_SMALL = 16 << 10
_FEW_RANKS = 16
"""Up to so many, several schedules are tried for every size."""
_TRIED = ("packets", "bulk", "bulk zero_copy", "pull bulk zero_copy copy:push")
_BYTES_A_BLOCK, _MOST_BLOCKS = 2 << 10, 64


@undisturbed
def fastest(
    program: Verified[Program],
    machine: Machine,
    nbytes: int,
    itemsize: int,
    words: str = "",
    group: Sequence[int] = (),
    *,
    recorder: Recorder | None = None,
    tell: Callable[[str], None] = lambda _: None,
) -> Timed:
    """Return the plan that the simulator finds fastest, of a few, and its figures.

    The recorder hears that one only. `tell` is told what is being done.
    """

    def timed(plan: ProvedPlan, hears: Recorder | None) -> Timed:
        steps = sum(len(lane) for lanes in plan.value.ranks for lane in lanes)
        tell(f"simulating {program.value.name}: {steps:,} steps")
        found = sim.simulate(
            plan, machine, nbytes=nbytes, itemsize=itemsize, ranks=group,
            recorder=hears,
        )  # fmt: skip
        return plan, found

    plans = _plans(program, machine, nbytes, words, tell)
    if len(plans) == 1:
        return timed(plans[0], recorder)
    tried = [timed(plan, None) for plan in plans]
    best = min(tried, key=lambda t: float(t[1].time_us))
    return timed(best[0], recorder) if recorder else best


def _plans(
    program: Verified[Program],
    machine: Machine,
    nbytes: int,
    words: str,
    tell: Callable[[str], None],
) -> list[ProvedPlan]:
    """Return the plan under the schedule that was asked for, or some for the size.

    A GPU moves what many blocks move side by side; a core is one block.
    """

    def proved(schedule: Schedule) -> ProvedPlan:
        plan = lower(program, schedule)
        tell(f"proving the plan of {program.value.name} under {schedule}")
        return verify_plan(plan, program)

    if words:
        return [proved(Schedule.parse(words))]
    blocks = 1
    if machine.kind == "gpu":
        blocks = min(_MOST_BLOCKS, max(1, nbytes // _BYTES_A_BLOCK))
    tried: tuple[str, ...] = _TRIED
    if program.value.num_ranks > _FEW_RANKS:
        small = nbytes <= _SMALL * program.value.num_ranks
        tried = ("packets",) if small else ("bulk",)
    found = []
    for how in tried:
        with contextlib.suppress(PlanError):  # not all serve every program
            found.append(proved(replace(Schedule.parse(how), blocks=blocks)))
    return found
