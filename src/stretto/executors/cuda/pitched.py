"""An all_to_all with its permutation: the caller's arrays as rows with a pitch.

`Call.rows` says how many elements of a part lie together in the input and in the
output, 0 for all of them. The plan does not change; what it takes for a contiguous part
is spelled as a pitched one (kernels/pitched.cuh), so there is no pass before or after.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from stretto.collectives import storage
from stretto.errors import PlanError
from stretto.executors import Call
from stretto.executors.cuda.bound import KernelLaunch
from stretto.executors.cuda.engine import runs_on_engine
from stretto.executors.cuda.host import Host
from stretto.executors.cuda.launch import mixed
from stretto.executors.cuda.operands import Operands
from stretto.ir import Verified
from stretto.lower import hands_round_on_engine
from stretto.plan import Loc, Plan, Space

__all__ = ["PitchedOperands", "pitched_launch", "pitches"]

LARGEST = 1 << 32
SPACES = (Space.INPUT, Space.OUTPUT)


class PitchedOperands(Operands):
    """Operands of a plan of which the input or the output is pitched."""

    def __init__(self, plan: Plan, rows: tuple[int, int]) -> None:
        if any(stop - start != 1 for start, stop in plan.atoms):
            raise PlanError(
                f"plan {plan.name} moves several parts as one; with a permutation want "
                "an algorithm that moves each by itself, such as all_to_all/one_shot"
            )
        super().__init__(plan)
        self._pitched = {s for s, row in zip(SPACES, rows, strict=True) if row}

    def views(self) -> Iterator[str]:
        """Yield what the steps of a lane begin with."""
        for nth, space in enumerate(SPACES):
            if space in self._pitched:
                part, row = (self.word("extra", 2 * nth + i) for i in range(2))
                name = f"{space.name.lower()}_rows"
                yield (
                    f"  const Pitch {name} = {{static_cast<u64>(at.{part}), "
                    f"static_cast<u64>(at.{row})}};"
                )

    def _plain(self, rank: int, loc: Loc, nth: int) -> str:
        plain = super()._plain(rank, loc, nth)
        if loc.space not in self._pitched:
            return plain
        name, ranks = loc.space.name.lower(), self.plan.num_ranks
        return f"pitched<{ranks}>({plain}, me.p.{name}[{loc.rank}], {name}_rows)"


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
