"""How a kernel's text spells signals and waits, near ones and those of other hosts.

What a lane puts to a rank on another host is stored in a mirror of that rank's staging.
The lane's next signal to the rank names it, so that the host sends both (far.cuh).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

from stretto.compiler.plan import Batch, Move, Plan, Signal, Space, Wait
from stretto.errors import PlanError
from stretto.executors.cuda.codegen.operands import Operands


class FarPuts:
    """What one lane has put to ranks on other hosts, and has not signalled yet."""

    def __init__(self, plan: Plan, rank: int, operands: Operands) -> None:
        self._plan, self._rank, self._operands = plan, rank, operands
        self._puts: defaultdict[int, list[str]] = defaultdict(list)
        """By rank: the puts, spelt."""

    def note(self, move: Move, atom: int) -> None:
        """Remember what a move of an atom puts elsewhere."""
        for dst in move.dsts:
            if not self._plan.is_far(self._rank, dst.rank):
                continue
            if dst.space is not Space.STAGE or dst.packets:
                raise PlanError(
                    f"plan {self._plan.name}: rank {self._rank} puts to rank "
                    f"{dst.rank} on another host; want plain data in its staging"
                )
            place = self._operands.place(dst, atom - move.start)
            self._puts[dst.rank].append(f"there<{dst.rank}>(me, {place}, s{atom})")

    def sync(self, batch: Batch) -> list[str]:
        """Return the lines of signals, or of waits, that are together."""
        index, first = batch[0]
        near: list[str] = []
        far: list[str] = []
        for _, step in batch:
            assert isinstance(step, Signal | Wait)  # batches are of one kind
            args = f"{step.rank}, {step.lane}, {step.n}"
            if not self._plan.is_far(self._rank, step.rank):
                relaxed = isinstance(step, Signal) and not step.release
                near.append(f"Flag<{args}{', false' * relaxed}>{{}}")
            elif isinstance(step, Wait):
                near.append(f"FarFlag<{args}>{{}}")
            else:
                puts = ", ".join(self._puts.pop(step.rank, ()))
                far.append(f"far_signal<{args}>({puts})")
        name = "signal" if isinstance(first, Signal) else "wait"
        return [*_call(name, index, near), *_call(f"{name}_far", index, far)]

    def check(self) -> None:
        """Raise when something was put and is not signalled."""
        if self._puts:
            raise PlanError(
                f"plan {self._plan.name}: rank {self._rank} puts to ranks "
                f"{sorted(self._puts)} on other hosts, and never signals them"
            )


def _call(name: str, index: int, flags: Sequence[str]) -> list[str]:
    return [f"  {name}<{index}>(me, {', '.join(flags)});"] if flags else []
