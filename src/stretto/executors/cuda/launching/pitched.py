"""An all_to_all with its permutation: the caller's arrays as rows with a pitch.

`Call.rows` says how many elements of a part lie together in the input and in the
output, 0 for all of them. The plan does not change; what it takes for a contiguous part
is spelled as a pitched one (kernels/pitched.cuh), so there is no pass before or after.
"""

from __future__ import annotations

from typing import Any

from stretto.collectives import storage
from stretto.errors import PlanError
from stretto.executors import Call
from stretto.executors.cuda.launching.bound import KernelLaunch
from stretto.executors.cuda.launching.engine import runs_on_engine
from stretto.executors.cuda.launching.host import Host
from stretto.executors.cuda.launching.launch import mixed
from stretto.ir import Verified
from stretto.lower import hands_round_on_engine
from stretto.plan import Plan

__all__ = ["pitched_launch", "pitches"]

LARGEST = 1 << 32


def pitches(plan: Plan, call: Call, itemsize: int) -> tuple[int, ...]:
    """Return the words of the table: bytes of a part and of its rows, twice."""
    part = call.counts[0] * itemsize
    if part >= LARGEST:
        raise PlanError(
            f"plan {plan.name}: parts of {part} bytes with a pitch; want less than "
            f"{LARGEST}"
        )
    return tuple(
        max(1, nbytes) for row in call.rows for nbytes in (part, row * itemsize)
    )


def pitched_launch(
    session: Host, proved: Verified[Plan], call: Call, sizes: Any, mark: int
) -> KernelLaunch:
    """Bind an all_to_all whose parts are rows with a pitch."""
    plan = proved.value
    if runs_on_engine(plan) or hands_round_on_engine(plan):
        raise PlanError(
            f"plan {plan.name} ({plan.schedule}): copy engines move what is "
            "contiguous, and the call has a permutation; want packets or bulk"
        )
    words = pitches(plan, call, storage(call.dtype).itemsize)
    said = f", in rows of {call.rows[0]} and {call.rows[1]}"
    mark = session.watch.part(mixed(mark, call.rows), mark, said)
    return session.kernel_launch(proved, call, sizes, mark, words)
