"""How a kernel spells arrays that are rows with a pitch (kernels/pitched.cuh)."""

from __future__ import annotations

from collections.abc import Iterator

from stretto.compiler.plan import Loc, Plan, Space
from stretto.errors import PlanError
from stretto.executors.cuda.codegen.operands import Operands

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

    def _plain(self, rank: int, loc: Loc, nth: int, *, reads: bool) -> str:
        plain = super()._plain(rank, loc, nth, reads=reads)
        if loc.space not in self._pitched:
            return plain
        name, ranks = loc.space.name.lower(), self.plan.num_ranks
        return f"pitched<{ranks}>({plain}, me.p.{name}[{loc.rank}], {name}_rows)"
