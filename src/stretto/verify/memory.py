"""The memory of a plan under proof: what it holds, who touched it when, who may.

The rules of order, for a lane that touches a place at some time:
- plain data are read only by who knows (as data) of the write;
- packets announce themselves: reading them waits, and teaches order only;
- nothing is stored while an earlier store may still be landing, or an earlier read may
  still be going on; staging is stored once;
- a unit of staging has room for any atom and holds one: it is read as that atom;
- a peer touches a caller's memory only once it knows that the caller has entered;
- what is put to another host has landed for those who know that its rank has waited for
  a signal that its sender's lane sent there later, itself (`landing`): until then
  nobody reads it, and nobody stores over its source.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence

import numpy as np

from stretto import collectives
from stretto.collectives import Shape
from stretto.errors import PlanError, UndefinedError
from stretto.plan import Loc, Move, Plan, Space
from stretto.verify.aliasing import overlay
from stretto.verify.clocks import Clock, Clocks
from stretto.verify.landing import Landings, Way
from stretto.verify.shape import chunks_of
from stretto.verify.values import Value, Values

__all__ = ["Cell", "Held", "Memory", "Row"]

Held = tuple[Value | None, bool]
"""What a move stores: a value, and whether it is finished (divided, for avg)."""

Tell = Callable[[int, Move, str], str]
"""Return a message about a lane's move: where, what, and why it is wrong."""


class Cell:
    """One atom's place."""

    __slots__ = (
        "atom", "far", "finished", "given", "lane", "op", "packets", "puts", "readers",
        "time",
        "value",
    )  # fmt: skip

    def __init__(self) -> None:
        self.value: Value | None = None
        self.given: Value | None = None
        """What a caller's input holds here, where not every call is in place."""
        self.atom = -1
        """The atom that lies in a unit of staging: it says how long the value is."""
        self.finished = False
        self.op = -1
        """The program's operation that stored it, for messages."""
        self.lane = -1
        """The lane of the last store; -1: the caller, before the call."""
        self.time = 0
        self.packets: Clock | None = None
        self.readers: dict[int, int] | None = None
        self.far = False
        """Whether the last store came from another host."""
        self.puts: dict[Way, int] | None = None
        """The last time that it was put to another host, by lane and rank."""


Row = Sequence[Cell]


class Memory:
    """All places of a plan, and the rules for touching them."""

    def __init__(
        self,
        plan: Plan,
        values: Values,
        clocks: Clocks,
        rank_of: list[int],
        tell: Tell,
    ) -> None:
        self.clocks, self.rank_of, self.tell = clocks, rank_of, tell
        self.lanes_of: dict[int, list[int]] = defaultdict(list)
        for lane, rank in enumerate(rank_of):
            self.lanes_of[rank].append(lane)
        self.far: dict[int, list[tuple[int, int, bool]]] = defaultdict(list)
        """By rank, what peers did to its caller's memory: lane, time, wrote."""
        self.plan, self.hosts = plan, bool(plan.hosts)
        self.landings = Landings()
        self.paired = False
        """Whether calls in place were proved only where partners have one size."""
        self._rows = [self._allocate(plan, values, r) for r in range(plan.num_ranks)]

    def row(self, loc: Loc, width: int) -> Row:
        """Return the places of a location."""
        return self._rows[loc.rank][loc.space][loc.pos : loc.pos + width]

    def read(self, lane: int, time: int, move: Move, src: Loc, row: Row) -> None:
        """Let a lane read, or raise why it may not."""
        clock = self.clocks.lanes[lane]
        if src.packets:
            for cell in row:
                assert cell.packets is not None  # the step waited for it
                if cell.packets is not self.clocks.nothing:
                    np.maximum(clock.order, cell.packets.order, out=clock.order)
                    cell.packets = self.clocks.nothing
        far = self.hosts and self.plan.is_far(self.rank_of[lane], move.dsts[0].rank)
        for atom, cell in enumerate(row, move.start):
            if cell.value is None:
                raise UndefinedError(self.tell(lane, move, "reads what nobody wrote"))
            if cell.given is not None:
                self._check_apart(lane, move, src, cell)
            if cell.atom not in (-1, atom):
                what = f"reads {_spell(src)} as atom {atom}, and it holds {cell.atom}"
                raise PlanError(self.tell(lane, move, what))
            if src.packets:
                self._check_packets(lane, move, cell)
            else:
                self._check_plain(lane, move, src, cell)
            if far:
                cell.puts = {**(cell.puts or {}), (lane, move.dsts[0].rank): time}
            if cell.readers is None:
                cell.readers = {lane: time}
            else:
                cell.readers[lane] = time
        self._visit(lane, time, move, src, wrote=False)

    def _check_apart(self, lane: int, move: Move, src: Loc, cell: Cell) -> None:
        """Raise if what lies in place is not what it is where outputs lie apart.

        Such a plan serves both: ranks whose partners differ work on copies of inputs.
        """
        if src.space is Space.OUTPUT and cell.lane < 0:
            what = "reads what nobody wrote, where this rank is not in place"
            raise UndefinedError(self.tell(lane, move, what))
        if src.space is Space.INPUT and cell.value != cell.given:
            what = f"reads {_spell(src)}, over which an output lies by now"
            raise PlanError(self.tell(lane, move, what))

    def _check_packets(self, lane: int, move: Move, cell: Cell) -> None:
        if cell.readers and lane not in cell.readers:
            (other, *_) = cell.readers
            what = f"reads packets that {self.who(other)} reads; want one lane for them"
            raise PlanError(self.tell(lane, move, what))

    def _check_plain(self, lane: int, move: Move, src: Loc, cell: Cell) -> None:
        if cell.packets is not None:
            raise PlanError(self.tell(lane, move, "reads packets as plain data"))
        writer, clock = cell.lane, self.clocks.lanes[lane]
        if cell.far:
            if self.landings.known(clock.data, (writer, src.rank), cell.time):
                return
            what = (
                f"reads {_spell(src)} before {self.who(writer)}'s put may have landed; "
                f"want a wait for a later signal of that lane, sent to rank {src.rank}"
            )
            raise PlanError(self.tell(lane, move, what))
        if writer in (-1, lane) or clock.data[writer] >= cell.time:
            return
        what = (
            f"reads {_spell(src)} while {self.who(writer)} may still be writing it; "
            f"want a wait for a signal sent after the data"
        )
        raise PlanError(self.tell(lane, move, what))

    def write(
        self,
        lane: int,
        time: int,
        move: Move,
        dst: Loc,
        held: Sequence[Held],
        told: int | None = None,
    ) -> None:
        """Let a lane store, or raise why it may not."""
        finish = move.finish and dst.space is Space.OUTPUT
        packets = self.clocks.message(lane, release=False) if dst.packets else None
        if packets is not None and told is not None:
            packets.order[lane] = told
        self._visit(lane, time, move, dst, wrote=True)
        row = self.row(dst, len(held))
        staged = dst.space is Space.STAGE
        far = self.hosts and self.plan.is_far(self.rank_of[lane], dst.rank)
        for atom, (cell, (value, finished)) in enumerate(
            zip(row, held, strict=True), move.start
        ):
            if cell.lane >= 0 or cell.readers:
                self._check_store(lane, move, dst, cell)
            if cell.puts and (value, finished or finish) != (cell.value, cell.finished):
                self._check_source(lane, move, dst, cell.puts)
                cell.puts = None
            cell.value = value
            cell.atom = atom if staged else -1
            cell.finished = finished or finish
            cell.lane, cell.time, cell.op = lane, time, move.op
            cell.readers = None
            cell.packets = packets
            cell.far = far

    def _check_store(self, lane: int, move: Move, dst: Loc, cell: Cell) -> None:
        clock = self.clocks.lanes[lane]
        writer = cell.lane
        wrong = ""
        if writer >= 0 and dst.space is Space.STAGE:
            wrong = f"stores {_spell(dst)} a second time"
        elif writer >= 0 and writer != lane and clock.data[writer] < cell.time:
            wrong = (
                f"stores {_spell(dst)} while {self.who(writer)} may still be writing it"
            )
        for reader, read_at in (cell.readers or {}).items():
            if reader != lane and clock.order[reader] < read_at:
                wrong = (
                    f"stores {_spell(dst)} while {self.who(reader)} may still be "
                    f"reading what was there"
                )
        if wrong:
            raise PlanError(self.tell(lane, move, wrong))

    def _check_source(
        self, lane: int, move: Move, dst: Loc, puts: Mapping[Way, int]
    ) -> None:
        """Raise while what is stored over may still be on its way to another host."""
        clock = self.clocks.lanes[lane]
        for way, time in puts.items():
            if not self.landings.known(clock.order, way, time):
                what = (
                    f"stores {_spell(dst)} while {self.who(way[0])}'s put from there "
                    f"to rank {way[1]}, on another host, may not have landed"
                )
                raise PlanError(self.tell(lane, move, what))

    def _visit(
        self, lane: int, time: int, move: Move, loc: Loc, *, wrote: bool
    ) -> None:
        if loc.space is Space.STAGE or loc.rank == self.rank_of[lane]:
            return
        clock = self.clocks.lanes[lane]
        known = clock.order if wrote else clock.data
        if not any(known[x] for x in self.lanes_of[loc.rank]):
            raise PlanError(
                self.tell(
                    lane,
                    move,
                    f"touches {_spell(loc)}, the caller's memory, before knowing that "
                    f"rank {loc.rank} has entered the call",
                )
            )
        self.far[loc.rank].append((lane, time, wrote))

    def _allocate(
        self, plan: Plan, values: Values, rank: int
    ) -> tuple[list[Cell], ...]:
        """Return a rank's input, output and staging; in place, some cells are both."""
        spans_in = chunks_of(plan.inputs[rank], plan.atoms)
        spans_out = chunks_of(plan.outputs[rank], plan.atoms)
        under: dict[int, int] = {}
        paired = False
        if plan.in_place:
            kind = collectives.get(plan.collective)
            shape = Shape(
                num_ranks=plan.num_ranks, split=plan.split, params=plan.params
            )
            over = overlay(kind, shape, rank, spans_in, spans_out, plan.name)
            under = over.under
            paired = over.paired
            self.paired |= paired
        inputs = [Cell() for _ in spans_in]
        for cell, (start, _) in zip(inputs, spans_in, strict=True):
            cell.value = values.input(rank, start)
        for p in under.values() if paired else ():
            inputs[p].given = inputs[p].value
        outputs = [
            inputs[under[p]] if p in under else Cell() for p in range(len(spans_out))
        ]
        return inputs, outputs, [Cell() for _ in range(plan.stage_units[rank])]

    def unread(self) -> tuple[int, int] | None:
        """Return a rank and unit of staging that a peer stored and nobody read."""
        for rank, spaces in enumerate(self._rows):
            for unit, cell in enumerate(spaces[Space.STAGE]):
                far = cell.lane >= 0 and self.rank_of[cell.lane] != rank
                if far and not cell.readers:
                    return rank, unit
        return None

    def who(self, lane: int) -> str:
        """Return how people call a lane."""
        rank = self.rank_of[lane]
        index = self.lanes_of[rank].index(lane)
        return f"rank {rank}" + (f" lane {index}" if index else "")


def _spell(loc: Loc) -> str:
    return f"r{loc.rank}.{loc.space.name.lower()}[{loc.pos}]"
