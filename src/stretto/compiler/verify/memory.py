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

from collections.abc import Mapping, Sequence
from itertools import repeat
from typing import NoReturn

from stretto.compiler.plan import (
    BufferRun,
    Loc,
    Move,
    Plan,
    Space,
    Step,
    spell_step,
)
from stretto.compiler.verify.aliasing import Atoms, overlay
from stretto.compiler.verify.clocks import Clocks, VectorClock
from stretto.compiler.verify.landing import Landings, Way
from stretto.compiler.verify.shape import chunks_of
from stretto.compiler.verify.values import Value, Values
from stretto.errors import PlanError, UndefinedError

Held = tuple[Value | None, bool]
"""What a move stores: a value, and whether it is finished (divided, for avg)."""


class Stored:
    """A store: the cells that it filled share it."""

    __slots__ = ("lane", "op", "time")

    def __init__(self, lane: int, time: int, op: int) -> None:
        self.lane, self.time = lane, time
        """The lane that stored, and when; -1: the caller, before the call."""
        self.op = op
        """The program's operation that it serves, for messages."""


_BEFORE = Stored(-1, 0, -1)
"""What the caller stored before the call, if anything."""


class Cell:
    """One atom's place."""

    __slots__ = (
        "atom", "finished", "given", "last", "packets", "puts", "readers", "value",
    )  # fmt: skip

    def __init__(
        self,
        value: Value | None = None,
        finished: bool = False,
        last: Stored = _BEFORE,
        packets: VectorClock | None = None,
        atom: int = -1,
    ) -> None:
        self.value, self.finished = value, finished
        self.last, self.packets = last, packets
        """The last store, and what it tells who reads it as packets."""
        self.atom = atom
        """The atom that lies in a unit of staging: it says how long the value is."""
        self.given: Value | None = None
        """What a caller's input holds here, where not every call is in place."""
        self.readers: Mapping[int, int] | None = None
        """When each lane last read it. Cells that were read together share this."""
        self.puts: dict[Way, int] | None = None
        """The last time that it was put to another host, by lane and rank."""


_BLANK = Cell()
"""Every place that nobody has stored to yet. It is never changed."""

Row = Sequence[Cell]


class PlanMemory:
    """All places of a plan, and the rules for touching them."""

    def __init__(
        self,
        plan: Plan,
        values: Values,
        clocks: Clocks,
        rank_of: list[int],
    ) -> None:
        self.clocks, self.rank_of = clocks, rank_of
        self.lanes_of: list[tuple[int, ...]] = [() for _ in plan.ranks]
        for lane, rank in enumerate(rank_of):
            self.lanes_of[rank] += (lane,)
        self.visits: list[dict[tuple[int, bool], int]] = [{} for _ in plan.ranks]
        """By rank: when a peer's lane last touched the caller's memory; True: wrote."""
        self.plan, self.hosts = plan, bool(plan.hosts)
        self.landings = Landings()
        self._spans: dict[tuple[BufferRun, ...], Atoms] = {}
        self.paired = False
        """Whether calls in place were proved only where partners have one size."""
        self._rows = [self._allocate(plan, values, r) for r in range(plan.num_ranks)]

    def row(self, loc: Loc, width: int) -> Row:
        """Return the places of a location: of each position another."""
        row, at = self._rows[loc.rank][loc.space], loc.pos
        for pos in range(at, at + width):
            if row[pos] is _BLANK:
                row[pos] = Cell()
        return row[at : at + width]

    def rows(self, locs: Sequence[Loc], width: int) -> list[Row]:
        """Return the places of each location; of those not stored to, `_BLANK`."""
        every = self._rows
        return [every[rank][space][at : at + width] for rank, space, at, _ in locs]

    def spans(self, runs: tuple[BufferRun, ...]) -> Atoms:
        """Return the chunks that every position of a buffer spans: from, to."""
        found = self._spans.get(runs)
        if found is None:
            found = self._spans[runs] = chunks_of(runs, self.plan.atoms)
        return found

    def read(self, lane: int, time: int, move: Move, src: Loc, row: Row) -> None:
        """Let a lane read, or raise why it may not."""
        heard = src.packets
        if heard:
            self._hear(lane, row)  # before: what they teach may allow this very read
        far = self.hosts and self._is_far(lane, move.dsts[0].rank)
        # Cells that one store filled share it, and cells that were read together share
        # their readers: what follows for one of them is not asked again for the next.
        fine: Stored | None = None
        before: Mapping[int, int] | None = None
        readers = mine = {lane: time}
        for atom, cell in enumerate(row, move.start):
            if cell.value is None:
                place = src._replace(pos=src.pos + atom - move.start)
                what = f"reads what nobody wrote{self._stored_by(lane, place)}"
                raise UndefinedError(self.tell(lane, move, what))
            if cell.given is not None:
                self._check_apart(lane, move, src, cell)
            if cell.atom != atom and cell.atom != -1:
                what = f"reads {_spell(src)} as atom {atom}, and it holds {cell.atom}"
                raise PlanError(self.tell(lane, move, what))
            if cell.readers is not before:
                before = cell.readers
                readers = {**before, lane: time} if before else mine
                if heard and before and lane not in before:
                    self._refuse_packets(lane, move, before)
            if not heard:
                if cell.packets is not None:
                    what = "reads packets as plain data"
                    raise PlanError(self.tell(lane, move, what))
                if cell.last is not fine:
                    fine = self._check_plain(lane, move, src, cell.last)
            if far:
                cell.puts = {**(cell.puts or {}), (lane, move.dsts[0].rank): time}
            cell.readers = readers
        if src.space is not Space.STAGE and src.rank != self.rank_of[lane]:
            self._visit(lane, time, move, src, wrote=False)

    def _stored_by(self, lane: int, place: Loc) -> str:
        """Return which step stores there at some time, of which no wait makes sure."""
        lanes = [steps for of_rank in self.plan.ranks for steps in of_rank]
        for other, steps in enumerate(lanes):
            for step in steps:
                if isinstance(step, Move) and any(
                    (dst.rank, dst.space) == (place.rank, place.space)
                    and 0 <= place.pos - dst.pos < step.stop - step.start
                    for dst in step.dsts
                ):
                    missing = (
                        "" if other == lane else "; want a wait for that before it"
                    )
                    told = spell_step(self.rank_of[other], step)
                    return f" so far: {self.who(other)} stores it in {told}{missing}"
        return ""

    def _hear(self, lane: int, row: Row) -> None:
        """Let a lane learn from packets, once from each message."""
        nothing = last = self.clocks.nothing
        for cell in row:
            told = cell.packets
            assert told is not None, "the step waited for it"
            if told is not nothing:
                if told is not last:
                    self.clocks.learn(lane, told)
                    last = told
                cell.packets = nothing

    def _check_apart(self, lane: int, move: Move, src: Loc, cell: Cell) -> None:
        """Raise if what lies in place is not what it is where outputs lie apart.

        Such a plan serves both: ranks whose partners differ work on copies of inputs.
        """
        if src.space is Space.OUTPUT and cell.last is _BEFORE:
            what = "reads what nobody wrote, where this rank is not in place"
            raise UndefinedError(self.tell(lane, move, what))
        if src.space is Space.INPUT and cell.value != cell.given:
            what = f"reads {_spell(src)}, over which an output lies by now"
            raise PlanError(self.tell(lane, move, what))

    def _refuse_packets(
        self, lane: int, move: Move, readers: Mapping[int, int]
    ) -> NoReturn:
        (other, *_) = readers
        what = f"reads packets that {self.who(other)} reads; want one lane for them"
        raise PlanError(self.tell(lane, move, what))

    def _check_plain(self, lane: int, move: Move, src: Loc, last: Stored) -> Stored:
        """Return a store whose data a lane may read now, or raise why not."""
        writer, data = last.lane, self.clocks.lanes[lane].data
        if self.hosts and self._is_far(writer, src.rank):
            if self.landings.known(data, (writer, src.rank), last.time):
                return last
            what = (
                f"reads {_spell(src)} before {self.who(writer)}'s put may have landed; "
                f"want a wait for a later signal of that lane, sent to rank {src.rank}"
            )
            raise PlanError(self.tell(lane, move, what))
        if writer in (-1, lane) or data[writer] >= last.time:
            return last
        what = (
            f"reads {_spell(src)} while {self.who(writer)} may still be writing it; "
            f"want a wait for a signal sent after the data"
        )
        raise PlanError(self.tell(lane, move, what))

    def write(
        self,
        stored: Stored,
        move: Move,
        dst: Loc,
        held: Sequence[Held],
        packets: VectorClock | None,
    ) -> None:
        """Let a lane store, or raise why it may not; packets tell what it knew."""
        lane, (rank, space, at, _) = stored.lane, dst
        staged = space is Space.STAGE
        if not staged and rank != self.rank_of[lane]:
            self._visit(lane, stored.time, move, dst, wrote=True)
        finish = move.finish and space is Space.OUTPUT
        places = self._rows[rank][space]
        if len(held) == 1 and places[at] is _BLANK:  # as mostly: nothing to compare
            ((value, done),) = held
            atom = move.start if staged else -1
            places[at] = Cell(value, done or finish, stored, packets, atom)
            return
        atoms = range(move.start, move.stop) if staged else repeat(-1)
        stop = at + len(held)
        row = places[at:stop]
        if row.count(_BLANK) == len(held):
            places[at:stop] = [
                Cell(value, done or finish, stored, packets, atom)
                for (value, done), atom in zip(held, atoms)  # noqa: B905  (endless)
            ]
            return
        for nth, (value, done) in enumerate(held):
            cell, finished = row[nth], done or finish
            if cell is _BLANK:
                cell = places[at + nth] = Cell()
            elif cell.last is not _BEFORE or cell.readers:
                self._check_store(lane, move, dst, cell)
                if cell.puts and (value, finished) != (cell.value, cell.finished):
                    self._check_source(lane, move, dst, cell.puts)
                    cell.puts = None
            # The same value over itself harms no put that still reads it (above);
            # anything else is, and readers of before count no more from here.
            cell.value = value
            cell.finished = finished
            cell.last = stored
            cell.readers = None
            cell.packets = packets
            if staged:
                cell.atom = move.start + nth

    def _check_store(self, lane: int, move: Move, dst: Loc, cell: Cell) -> None:
        clock = self.clocks.lanes[lane]
        writer = cell.last.lane
        wrong = ""
        if writer >= 0 and dst.space is Space.STAGE:
            wrong = f"stores {_spell(dst)} a second time"
        elif writer >= 0 and writer != lane and clock.data[writer] < cell.last.time:
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
        """Let a lane touch a peer's memory, or raise why it may not."""
        visits = self.visits[loc.rank]
        if (lane, wrote) not in visits:
            clock = self.clocks.lanes[lane]
            known = clock.order if wrote else clock.data
            if not any(known[x] for x in self.lanes_of[loc.rank]):
                what = (
                    f"touches {_spell(loc)}, the caller's memory, before knowing that "
                    f"rank {loc.rank} has entered the call"
                )
                raise PlanError(self.tell(lane, move, what))
        visits[lane, wrote] = time

    def _allocate(
        self, plan: Plan, values: Values, rank: int
    ) -> tuple[list[Cell], ...]:
        """Return a rank's input, output and staging; in place, some cells are both."""
        spans_in = self.spans(plan.inputs[rank])
        spans_out = self.spans(plan.outputs[rank])
        under: dict[int, int] = {}
        paired = False
        if plan.in_place:
            over = overlay(plan.kind, plan.shape, rank, spans_in, spans_out, plan.name)
            under = over.under
            paired = over.paired
            self.paired |= paired
        inputs = [Cell(values.input(rank, start)) for start, _ in spans_in]
        for p in under.values() if paired else ():
            inputs[p].given = inputs[p].value
        outputs = [
            inputs[under[p]] if p in under else _BLANK for p in range(len(spans_out))
        ]
        return inputs, outputs, [_BLANK] * plan.stage_units[rank]

    def unread(self) -> tuple[int, int] | None:
        """Return a rank and unit of staging that a peer stored and nobody read."""
        for rank, spaces in enumerate(self._rows):
            for unit, cell in enumerate(spaces[Space.STAGE]):
                if cell.readers or cell.last is _BEFORE:
                    continue
                if self.rank_of[cell.last.lane] != rank:
                    return rank, unit
        return None

    def _is_far(self, lane: int, rank: int) -> bool:
        """Return whether a lane that stored runs on another host than a rank."""
        return lane >= 0 and self.plan.is_far(self.rank_of[lane], rank)

    def who(self, lane: int) -> str:
        """Return how people call a lane."""
        rank = self.rank_of[lane]
        index = self.lanes_of[rank].index(lane)
        return f"rank {rank}" + (f" lane {index}" if index else "")

    def at(self, lane: int, step: Step) -> str:
        """Return the beginning of a message about a step of a lane: where, and what."""
        rank, place = self.rank_of[lane], self.plan.place(step)
        told = f"{place}: " if place else ""
        return f"{told}{self.plan.name}: {self.who(lane)}: {spell_step(rank, step)}"

    def tell(self, lane: int, move: Move, what: str) -> str:
        """Return a message about a lane's move: where, what, and why it is wrong."""
        return f"{self.at(lane, move)}: {what}"


def _spell(loc: Loc) -> str:
    return f"r{loc.rank}.{loc.space.name.lower()}[{loc.pos}]"
