"""The cells of all ranks: which one an element of a location is.

In place, input and output are the same cells, wherever unequal counts put them. Staging
is one array for each parity of the epoch, so that two plans that follow one another use
the same cells for different things. Packets have an array of their own, and a *head*
for each unit, which says that they have come also where there are none.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence

from tests.checking.referee.calls import LaidOut
from tests.checking.referee.verdict import Fault, Outcome

from stretto.compiler.plan import Loc, Space

__all__ = ["PLAIN", "Cells"]

PLAIN = -1
"""The tag of what is no packet; that of a packet is its epoch."""


class Cells:
    """Where everything is, by number."""

    def __init__(self, num_ranks: int, calls: Sequence[LaidOut]) -> None:
        self.num_ranks, self.calls = num_ranks, calls
        self.total = 0
        self._starts: list[int] = []
        self._names: list[str] = []
        self.inputs: list[list[int]] = [[] for _ in calls]
        """By call and rank, the cell at which the input begins."""
        self.outputs: list[list[int]] = [[] for _ in calls]
        self.own = [self._callers_memory(rank) for rank in range(num_ranks)]
        """For each rank, all that its caller reads and writes."""
        self._staging: dict[tuple[int, int, str], int] = {}
        for rank in range(num_ranks):
            most = max(
                laid.call.plan.stage_units[rank]
                * laid.call.plan.schedule.blocks
                * laid.tile
                for laid in calls
            )
            for parity in (0, 1):
                for kind in ("stage", "packets", "heads"):
                    first = self._room(f"r{rank}.{kind}.{parity}", most)
                    self._staging[rank, parity, kind] = first

    def _room(self, name: str, many: int) -> int:
        self._starts.append(self.total)
        self._names.append(name)
        self.total += many
        return self._starts[-1]

    def _callers_memory(self, rank: int) -> range:
        """Give a rank room for input and output, or for both in one."""
        both = most = 0
        places = []
        for laid in self.calls:
            one = laid.buffers[rank]
            x, out = one.inputs, len(one.wanted)
            alike = rank in laid.call.in_place and x and out
            at_in = max(0, -one.shift) if alike else 0
            at_out = max(0, one.shift) if alike else -1
            both = max(both, at_in + x, at_out + out if alike else 0)
            most = max(most, 0 if alike else out)
            places.append((at_in, at_out))
        first = self._room(f"r{rank}.x", both)
        apart = self._room(f"r{rank}.out", most)
        for number, (at_in, at_out) in enumerate(places):
            self.inputs[number].append(first + at_in)
            self.outputs[number].append(apart if at_out < 0 else first + at_out)
        return range(first, self.total)

    def name(self, cell: int) -> str:
        """Return a cell in words."""
        area = bisect_right(self._starts, cell) - 1
        return f"{self._names[area]}[{cell - self._starts[area]}]"

    def at(
        self, number: int, loc: Loc, nth: int, part: tuple[int, int, int], epoch: int
    ) -> tuple[int, int]:
        """Return the cell of a slice's first element at a location, and its tag.

        The other elements follow. `part` is the block, where its slice of the atom
        begins, and the last element of the slice that there must be.
        """
        block, start, last = part
        laid = self.calls[number]
        pos = loc.pos + nth
        if not 0 <= loc.rank < self.num_ranks or pos < 0:
            raise _outside(loc)
        if loc.space is Space.STAGE:
            units = laid.call.plan.stage_units[loc.rank]
            if pos >= units:
                raise _outside(loc)
            kind = "packets" if loc.packets else "stage"
            first = self._staging[loc.rank, epoch & 1, kind]
            cell = first + (block * units + pos) * laid.tile
            return cell, epoch if loc.packets else PLAIN
        have = laid.buffers[loc.rank]
        if loc.space is Space.INPUT:
            offsets, room = laid.inputs[loc.rank], have.inputs
            base = self.inputs[number][loc.rank]
        else:
            offsets, room = laid.outputs[loc.rank], len(have.wanted)
            base = self.outputs[number][loc.rank]
        inside = pos + 1 < len(offsets) and offsets[pos] + start + last < room
        if loc.packets or not inside:
            raise _outside(loc)
        return base + offsets[pos] + start, PLAIN

    def head(
        self, number: int, loc: Loc, nth: int, part: tuple[int, int], epoch: int
    ) -> int:
        """Return the cell that says that packets have come, be they none."""
        if not 0 <= loc.rank < self.num_ranks:
            raise _outside(loc)
        laid = self.calls[number]
        units = laid.call.plan.stage_units[loc.rank]
        if loc.space is not Space.STAGE or not 0 <= loc.pos + nth < units:
            raise _outside(loc)
        unit = part[0] * units + loc.pos + nth
        return self._staging[loc.rank, epoch & 1, "heads"] + unit * laid.tile + part[1]


def _outside(loc: Loc) -> Fault:
    name = f"r{loc.rank}.{loc.space.name.lower()}[{loc.pos}]{'!' * loc.packets}"
    return Fault(Outcome.OUTSIDE, f"{name} has no such element")
