"""Prove a plan: promise, order, liveness, closedness, by running it on symbols.

Signals are counted and channels have one sender, so what a wait learns does not depend
on the interleaving: one run with vector clocks speaks for all of them.

- promise: outputs end with what the collective promises, divided once when averaged;
- ordered: conflicting accesses know of each other; peers touch a caller's memory only
  between its entry and its exit; staging is stored once, and read;
- live: the run ends, so every run ends;
- closed: everybody's entry is known to everybody at the end, so that the next calls may
  use the same staging;
- in place: with `plan.in_place`, all of this while outputs lie in inputs.
"""

from __future__ import annotations

from collections import defaultdict, deque
from dataclasses import dataclass, field

import numpy as np

from stretto import collectives
from stretto.collectives import Shape
from stretto.errors import PlanError, PromiseError, UndefinedError
from stretto.ir import Verified
from stretto.plan import Loc, Move, Plan, Signal, Space, Step, Wait, spell_step
from stretto.verify.clocks import Clock, Clocks
from stretto.verify.contents import Contents, add, describe, moved
from stretto.verify.shape import Buffers, check_shape

__all__ = ["verify_plan"]


def verify_plan(plan: Plan) -> Verified[Plan]:
    """Return the plan as proved, or raise what is wrong with it and where."""
    check_shape(plan)
    _Run(plan).run()
    return Verified(plan)


@dataclass(slots=True)
class _Cell:
    """One atom's place in memory: what it holds, and who touched it when."""

    contents: Contents | None = None
    finished: bool = False
    writer: tuple[int, int] = (-1, 0)
    """Lane and time of the last write; -1: the caller, before the call."""
    packets: Clock | None = None
    readers: dict[int, int] = field(default_factory=dict)


@dataclass(slots=True)
class _Channel:
    """What a lane told another, and the other has not waited for."""

    sent: int = 0
    unheard: deque[tuple[int, Clock]] = field(default_factory=deque)


class _Run:
    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self.kind = collectives.get(plan.collective)
        self.shape = Shape(
            num_ranks=plan.num_ranks, split=plan.split, params=plan.params
        )
        self.lanes = [
            (rank, lane, steps)
            for rank, lanes in enumerate(plan.ranks)
            for lane, steps in enumerate(lanes)
        ]
        self.lane_of = {(r, i): x for x, (r, i, _) in enumerate(self.lanes)}
        self.lanes_of: dict[int, list[int]] = defaultdict(list)
        for x, (rank, _, _) in enumerate(self.lanes):
            self.lanes_of[rank].append(x)
        self.clocks = Clocks(len(self.lanes))
        self.buffers = Buffers(plan, self.kind, self.shape)
        self.cells: dict[tuple[int, Space, int], _Cell] = defaultdict(_Cell)
        self.channels: dict[tuple[int, int], _Channel] = defaultdict(_Channel)
        self.far: dict[int, list[tuple[int, int, bool]]] = defaultdict(list)
        """By rank, what peers did to its caller's memory: lane, time, wrote."""
        for rank in range(plan.num_ranks):
            for pos, chunk in enumerate(self.buffers.chunk_starts(rank, Space.INPUT)):
                cell = self._cell(Loc(rank, Space.INPUT, pos))
                cell.contents = ((chunk, 1 << rank, 1),)

    # Running: any lane that can go on does.

    def run(self) -> None:
        at = [0] * len(self.lanes)
        ready = deque(range(len(self.lanes)))
        blocked: set[int] = set()
        while ready:
            lane = ready.popleft()
            steps = self.lanes[lane][2]
            while at[lane] < len(steps):
                woken = self._step(lane, steps[at[lane]])
                if woken is None:
                    blocked.add(lane)
                    break
                at[lane] += 1
                for other in blocked.intersection(woken):
                    blocked.discard(other)
                    ready.append(other)
        stuck = [x for x, (_, _, steps) in enumerate(self.lanes) if at[x] < len(steps)]
        if stuck:
            raise PlanError(self._explain_hang(stuck, at))
        self._leave()
        self._check_promise()
        self._check_staging()

    def _step(self, lane: int, step: Step) -> tuple[int, ...] | None:
        """Do a step and return the lanes it may have woken; None when it must wait."""
        rank = self.lanes[lane][0]
        match step:
            case Signal():
                self.clocks.tick(lane)
                target = self.lane_of[step.rank, step.lane]
                channel = self.channels[lane, target]
                channel.sent += 1
                if step.n != channel.sent:
                    raise PlanError(
                        f"{self._at(lane, step)}: signal {step.n} on this channel, "
                        f"want {channel.sent}: they are counted from 1"
                    )
                told = self.clocks.message(lane, release=step.release)
                channel.unheard.append((step.n, told))
                return (target,)
            case Wait():
                channel = self.channels[self.lane_of[step.rank, step.lane], lane]
                if channel.sent < step.n:
                    return None
                self.clocks.tick(lane)
                while channel.unheard and channel.unheard[0][0] <= step.n:
                    self.clocks.lanes[lane].learn(channel.unheard.popleft()[1])
                return ()
        cells = [[self._cell(s, i) for i in _range(step)] for s in step.srcs]
        for src, row in zip(step.srcs, cells, strict=True):
            if src.packets and any(cell.packets is None for cell in row):
                return None
        time = self.clocks.tick(lane)
        return self._move(lane, rank, time, step, cells)

    def _move(
        self, lane: int, rank: int, time: int, move: Move, cells: list[list[_Cell]]
    ) -> tuple[int, ...]:
        for src, row in zip(move.srcs, cells, strict=True):
            for cell in row:
                self._read(lane, time, move, src, cell)
        held = []
        for i in _range(move):
            parts = [self._contents(lane, move, row[i]) for row in cells]
            total = parts[0]
            for part in parts[1:]:
                total = add(total, part)
            held.append((total, self._finished(lane, move, [r[i] for r in cells])))
        woken: list[int] = []
        for dst in move.dsts:
            for i, (contents, finished) in enumerate(held):
                self._write(lane, time, move, dst, i, contents, finished)
            if dst.packets:
                woken += self.lanes_of[dst.rank]
        return tuple(woken)

    # Accesses.

    def _cell(self, loc: Loc, offset: int = 0) -> _Cell:
        return self.cells[self.buffers.place(loc, offset)]

    def _read(self, lane: int, time: int, move: Move, src: Loc, cell: _Cell) -> None:
        clock = self.clocks.lanes[lane]
        if src.packets:
            assert cell.packets is not None  # the step waited for it
            if cell.packets is not self.clocks.nothing:
                np.maximum(clock.order, cell.packets.order, out=clock.order)
                cell.packets = self.clocks.nothing
        else:
            if cell.packets is not None:
                raise PlanError(f"{self._at(lane, move)}: packets read as plain data")
            writer, when = cell.writer
            if writer >= 0 and writer != lane and clock.data[writer] < when:
                raise PlanError(
                    f"{self._at(lane, move)}: reads {_spell(src)} while "
                    f"{self._who(writer)} may still be writing it; want a wait for a "
                    f"signal that was sent after the data"
                )
        self._enter(lane, time, move, src, wrote=False)
        cell.readers[lane] = time

    def _write(
        self, lane: int, time: int, move: Move, dst: Loc, i: int,
        contents: Contents, finished: bool,
    ) -> None:  # fmt: skip
        cell = self._cell(dst, i)
        clock = self.clocks.lanes[lane]
        writer, when = cell.writer
        if dst.space is Space.STAGE and writer >= 0:
            raise PlanError(f"{self._at(lane, move)}: {_spell(dst)} is stored twice")
        if writer >= 0 and writer != lane and clock.data[writer] < when:
            raise PlanError(
                f"{self._at(lane, move)}: stores {_spell(dst)} while "
                f"{self._who(writer)} may still be writing it"
            )
        for reader, read_at in cell.readers.items():
            if reader != lane and clock.order[reader] < read_at:
                raise PlanError(
                    f"{self._at(lane, move)}: stores {_spell(dst)} while "
                    f"{self._who(reader)} may still be reading what was there"
                )
        self._enter(lane, time, move, dst, wrote=True)
        final = dst.space is Space.OUTPUT
        cell.contents = contents
        cell.finished = finished or (final and move.finish)
        cell.writer = (lane, time)
        cell.readers.clear()
        if dst.packets:
            cell.packets = self.clocks.message(lane, release=False)

    def _enter(
        self, lane: int, time: int, move: Move, loc: Loc, *, wrote: bool
    ) -> None:
        """Peers touch a caller's memory only once it has entered."""
        if loc.rank == self.lanes[lane][0] or loc.space is Space.STAGE:
            return
        clock = self.clocks.lanes[lane]
        known = clock.order if wrote else clock.data
        if not any(known[x] for x in self.lanes_of[loc.rank]):
            raise PlanError(
                f"{self._at(lane, move)}: touches {_spell(loc)}, the caller's memory, "
                f"before knowing that rank {loc.rank} has entered the call"
            )
        self.far[loc.rank].append((lane, time, wrote))

    def _contents(self, lane: int, move: Move, cell: _Cell) -> Contents:
        if cell.contents is None:
            raise UndefinedError(f"{self._at(lane, move)}: reads what nobody wrote")
        return cell.contents

    def _finished(self, lane: int, move: Move, cells: list[_Cell]) -> bool:
        finished = {cell.finished for cell in cells}
        if len(finished) > 1 or (len(cells) > 1 and True in finished):
            raise PromiseError(
                f"{self._at(lane, move)}: combines a finished value (divided, for avg)"
            )
        if move.finish and True in finished:
            raise PromiseError(f"{self._at(lane, move)}: finishes a value twice")
        return finished.pop()

    # The end.

    def _leave(self) -> None:
        ranks = [rank for rank, _, _ in self.lanes]
        for rank in range(self.plan.num_ranks):
            mine = [self.clocks.lanes[x] for x in self.lanes_of[rank]]
            order = np.max([clock.order for clock in mine], axis=0)
            data = np.max([clock.data for clock in mine], axis=0)
            for lane, time, wrote in self.far[rank]:
                if (data if wrote else order)[lane] < time:
                    verb = "writing" if wrote else "reading"
                    raise PlanError(
                        f"{self.plan.name}: rank {rank} may leave while "
                        f"{self._who(lane)} is still {verb} its caller's memory"
                    )
            known = np.zeros(self.plan.num_ranks, np.int32)
            np.maximum.at(known, ranks, order)
            if not known.all():
                other = int(np.argmin(known))
                raise PlanError(
                    f"{self.plan.name}: not closed: rank {rank} may leave before "
                    f"rank {other} has entered, and overwrite in its next calls "
                    f"what rank {other} still uses; want a credit"
                )

    def _check_promise(self) -> None:
        for rank in range(self.plan.num_ranks):
            starts = self.buffers.chunk_starts(rank, Space.OUTPUT)
            for start, stop, chunk, ranks in self.kind.promise(self.shape, rank):
                for pos, at in enumerate(starts):
                    if start <= at < stop:
                        self._check_output(rank, pos, at, chunk - start, ranks)

    def _check_output(
        self, rank: int, pos: int, at: int, shift: int, ranks: int
    ) -> None:
        cell = self._cell(Loc(rank, Space.OUTPUT, pos))
        where = f"{self.plan.name}: rank {rank}, output[{at}]"
        if cell.contents is None or (
            cell.writer[0] < 0 and not self._was_there(rank, pos)
        ):
            raise PromiseError(f"{where}: nobody stores it")
        if cell.contents != ((at + shift, ranks, 1),):
            seen = moved(cell.contents, at)
            raise PromiseError(f"{where} {describe(seen, at, shift, ranks)}")
        if cell.finished != self.kind.reduces:
            raise PromiseError(f"{where}: finished {cell.finished}, want the other")

    def _was_there(self, rank: int, pos: int) -> bool:
        """Whether an output in place holds its input from the start."""
        return self.plan.in_place and self.buffers.over(rank).get(pos) is not None

    def _check_staging(self) -> None:
        for (rank, space, pos), cell in self.cells.items():
            far = cell.writer[0] >= 0 and self.lanes[cell.writer[0]][0] != rank
            if space is Space.STAGE and far and not cell.readers:
                raise PlanError(
                    f"{self.plan.name}: nobody reads r{rank}.stage[{pos}], so it may "
                    f"land in a later call"
                )

    # Words.

    def _who(self, lane: int) -> str:
        rank, index, _ = self.lanes[lane]
        return f"rank {rank}" + (f" lane {index}" if index else "")

    def _at(self, lane: int, step: Step) -> str:
        rank = self.lanes[lane][0]
        place = self.plan.place(step)
        told = f"{place}: " if place else ""
        return f"{told}{self.plan.name}: {self._who(lane)}: {spell_step(rank, step)}"

    def _explain_hang(self, stuck: list[int], at: list[int]) -> str:
        lines = [f"{self.plan.name}: can hang: nobody can go on:"]
        for lane in stuck[:8]:
            rank, _, steps = self.lanes[lane]
            lines.append(
                f"  {self._who(lane)} waits in: {spell_step(rank, steps[at[lane]])}"
            )
        return "\n".join(lines)


def _range(move: Move) -> range:
    return range(move.stop - move.start)


def _spell(loc: Loc) -> str:
    return f"r{loc.rank}.{loc.space.name.lower()}[{loc.pos}]"
