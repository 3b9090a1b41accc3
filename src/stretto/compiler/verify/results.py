"""What a run leaves in the outputs: what was promised, made as it was written."""

from __future__ import annotations

from bisect import bisect_left, bisect_right

from stretto.compiler.plan import Loc, Space
from stretto.compiler.verify.contents import describe
from stretto.compiler.verify.meaning import Meaning
from stretto.compiler.verify.memory import Cell, Row
from stretto.compiler.verify.running import SymbolicRun
from stretto.compiler.verify.values import Value
from stretto.errors import PromiseError
from stretto.program.collectives import Need
from stretto.program.ir import Spans


class Results:
    """The outputs of a plan that has been run."""

    def __init__(self, run: SymbolicRun) -> None:
        self.plan, self.kind, self.shape = run.plan, run.kind, run.shape
        self.values, self.memory, self._stored = run.values, run.memory, run.stored

    def check_promise(self) -> None:
        """Raise unless every output holds what the collective promises."""
        for rank in range(self.plan.num_ranks):
            spans, row = self._output(rank)
            starts = [a for a, _ in spans]
            for need in self.kind.promise(self.shape, rank):
                first = max(0, bisect_right(starts, need.start) - 1)
                last = bisect_left(starts, need.stop)
                self._check_need(rank, need, starts[first:last], row[first:last])

    def _check_need(self, rank: int, need: Need, starts: list[int], row: Row) -> None:
        """Raise unless the places that a need covers hold it."""
        shift, ranks = need.chunk - need.start, need.ranks
        want, final = ((shift, ranks, 1),), self.kind.reduces
        known: set[tuple[int, int]] = set()
        """Which expressions, so many chunks further on, were seen to hold it."""
        for at, cell in zip(starts, row, strict=True):
            if cell.value is None or (cell.given is not None and cell.last.lane < 0):
                raise PromiseError(f"{self._where(rank, at)}: nobody stores it")
            expression, chunk = cell.value
            if (expression, chunk - at) not in known:
                seen = self.values.contents(cell.value, at)
                if seen != want:
                    told = describe(seen, at, shift, ranks)
                    raise PromiseError(
                        f"{self._where(rank, at)} {told}{self._stored(cell)}"
                    )
                known.add((expression, chunk - at))
            if cell.finished != final:
                raise PromiseError(
                    f"{self._where(rank, at)}: is {'' if cell.finished else 'not '}"
                    f"finished (divided, for avg), want the opposite"
                    f"{self._stored(cell)}"
                )

    def _where(self, rank: int, at: int) -> str:
        return f"{self.plan.name}: rank {rank}, output[{at}]"

    # To the last bit.

    def meaning(self) -> Meaning:
        """Return what the outputs hold in the end."""
        found: Meaning = []
        for rank in range(self.plan.num_ranks):
            held: Spans[Value] = Spans()
            for (a, b), cell in zip(*self._output(rank), strict=True):
                if cell.value is not None:
                    expression, chunk = cell.value
                    held.write(a, b, (expression, chunk - a))
            found.append(held)
        return found

    def compare(self, want: Meaning | None) -> None:
        """Raise unless outputs are made as wanted, or alike on all ranks."""
        if not self.kind.reduces:
            return  # what is only moved can be made in one way
        if want is None:
            self._compare_ranks()
            return
        for rank, made in enumerate(want):
            pieces = list(made)
            nth = 0
            for (a, b), cell in zip(*self._output(rank), strict=True):
                while pieces[nth][1] <= a:
                    nth += 1
                at = nth
                while at < len(pieces) and pieces[at][0] < b:
                    expression, shift = pieces[at][2]
                    if cell.value != (expression, a + shift):
                        value = expression, a + shift
                        self._differs(rank, a, cell, value, "its program")
                    at += 1

    def _compare_ranks(self) -> None:
        made: dict[tuple[int, int], tuple[int, Value | None]] = {}
        for rank in range(self.plan.num_ranks):
            for (a, _), cell in zip(*self._output(rank), strict=True):
                if cell.value is None:
                    continue
                ((chunk, ranks, _),) = self.values.contents(cell.value, 0)
                other, value = made.setdefault((ranks, chunk), (rank, cell.value))
                if cell.value != value:
                    self._differs(rank, a, cell, value, f"rank {other}")

    def _differs(
        self, rank: int, at: int, cell: Cell, want: Value | None, whose: str
    ) -> None:
        spell = self.values.spell
        assert cell.value is not None and want is not None  # noqa: PT018
        raise PromiseError(
            f"{self.plan.name}: rank {rank}, output[{at}] is made in another order "
            f"than by {whose}, so its last bits differ: {spell(cell.value)}, "
            f"want {spell(want)}{self._stored(cell)}"
        )

    def _output(self, rank: int) -> tuple[list[tuple[int, int]], Row]:
        """Return the chunks of every position of a rank's output, and its cells."""
        spans = self.memory.spans(self.plan.outputs[rank])
        return spans, self.memory.row(Loc(rank, Space.OUTPUT, 0), len(spans))
