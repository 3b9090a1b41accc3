"""Calls of plans, laid out as a small machine: cells, and who does what to them.

A cell is one element of one rank's memory. In place, input and output are the same
cells, wherever unequal counts put them. Staging is one array for each parity of the
epoch, so that two plans use the same cells for different things.

An *agent* is whatever has an order of its own: a lane of a block or, when `threads` are
asked for, one thread of it, which has element i of every slice; then lanes are ordered
only by their signals and waits. A *caller* is an agent too, one for each rank: it
writes the input, starts the lanes, waits for them, reads the output, and uses the
memory again.

Legend: r rank, b block, t tile, e epoch, u unit of staging, i element of a slice.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any, NamedTuple

import numpy as np

from stretto import collectives
from stretto.ir import Program
from stretto.plan import BufferRun, Loc, Move, Plan, Signal, Space, Wait, spell_step
from stretto.testing.cases import shape_of
from stretto.testing.referee.values import NOTHING, Values
from stretto.testing.referee.verdict import Fault, Outcome
from stretto.testing.referee.wanted import Buffers, buffers, from_program

__all__ = [
    "GIVE", "LOAD", "MEET", "PLAIN", "SIGNAL", "STORE", "TAKE", "WAIT", "Call",
    "Machine", "Want", "check_program",
]  # fmt: skip

LOAD, STORE, SIGNAL, WAIT, MEET, GIVE, TAKE = range(7)
"""What agents do. Each is a tuple: the kind, the number of its event, and

    LOAD    ((cell, tag), ...), whether to combine them
    STORE   cell, tag, whether to divide
    SIGNAL  channel, value, whether it releases
    WAIT    channel, value
    MEET    a key, how many agents meet
    GIVE    cell, value
    TAKE    cell, a `Want`
"""
PLAIN = -1
"""The tag of what is no packet; that of a packet is its epoch."""
_UNIT = 16
"""Bytes of an element here: the alignment of chunks, so that any size can be."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    """One call of a plan by all ranks."""

    plan: Plan
    counts: tuple[int, ...]
    most: int = 1 << 30
    """Elements of an atom that a block moves in one tile, at most."""
    in_place: frozenset[int] = frozenset()
    """The ranks whose output is in their input."""
    program: Program | None = None
    """What the plan was made of, when the order of sums is to be judged by it."""

    def __str__(self) -> str:
        """Return what tells calls of a plan apart."""
        most = f" tiles of {self.most}" if self.most < 1 << 30 else ""
        place = f" in place on {sorted(self.in_place)}" if self.in_place else ""
        return f"counts {','.join(map(str, self.counts))}{most}{place}"


class Want(NamedTuple):
    """What a caller wants to find in a cell."""

    value: int | None
    """Exactly this, or (None) any sum of the leaves that is the same on all ranks."""
    leaves: tuple[int, ...]
    divided: bool
    what: str
    """The cell in words."""


class _Shape(NamedTuple):
    """A call laid out."""

    call: Call
    sizes: list[int]
    tile: int
    tiles: int
    inputs: list[list[int]]
    outputs: list[list[int]]
    buffers: tuple[Buffers, ...]
    base_in: list[int]
    """For each rank, the cell at which its input begins."""
    base_out: list[int]
    epoch: int
    """The first epoch of the call."""


class Machine:
    """The agents of several calls, one after the other, and the cells they use."""

    def __init__(
        self,
        calls: Sequence[Call],
        *,
        threads: bool = False,
        silent: bool = False,
        roll_call: bool = False,
    ) -> None:
        """Lay the calls out; `Fault` when a plan names a place that does not exist.

        silent: slices that are empty announce nothing, as on GPUs. roll_call: nobody
        ends a call before everybody has begun it, as kernels see to.
        """
        self.calls, self.threads, self.silent = calls, threads, silent
        self.num_ranks = calls[0].plan.num_ranks
        self.values = Values()
        self.agents: list[list[tuple[Any, ...]]] = []
        self.names: list[tuple[int, ...]] = []
        """Who an agent is: its rank, then call, lane, block and thread of a lane."""
        self.events: list[tuple[int, ...]] = []
        """What an event is: agent's name, tile and step; a caller's say only when."""
        self.cell_names: list[str] = []
        self.channels: dict[tuple[int, ...], int] = {}
        self._shapes: list[_Shape] = []
        epoch = 1
        for number, call in enumerate(calls):
            self._shapes.append(self._laid_out(call, epoch))
            epoch += self._shapes[number].tiles
        self._place_callers_memory()
        self._place_staging()
        self.num_cells = len(self.cell_names)
        self._callers = [self._agent((r,)) for r in range(self.num_ranks)]
        for number, shape in enumerate(self._shapes):
            self._call(number, shape, roll_call)
        for rank, caller in enumerate(self._callers):
            event = self._event((rank, len(calls), "frees its memory"))
            for cell in self._own[rank]:
                self.agents[caller].append((GIVE, event, cell, NOTHING))

    # What is where.

    def _laid_out(self, call: Call, epoch: int) -> _Shape:
        plan = call.plan
        kind = collectives.get(plan.collective)
        shape = shape_of(plan)
        symbols = kind.symbol_sizes(shape, np.asarray(call.counts), _UNIT).tolist()
        sizes = []
        for a, b in plan.atoms:
            if not 0 <= a <= b <= len(symbols):
                text = f"an atom of symbols {a}:{b}, of {len(symbols)}"
                raise Fault(Outcome.OUTSIDE, text)
            sizes.append(sum(symbols[a:b]))
        blocks = plan.schedule.blocks
        largest = max(sizes, default=0)
        tiles = max(1, -(-largest // (blocks * call.most)))
        tile = max(1, -(-largest // (blocks * tiles)))
        inputs = [_offsets(runs, sizes) for runs in plan.inputs]
        outputs = [_offsets(runs, sizes) for runs in plan.outputs]
        got = buffers(plan.collective, plan.num_ranks, plan.params, call.counts)
        return _Shape(call, sizes, tile, tiles, inputs, outputs, got, [], [], epoch)

    def _place_callers_memory(self) -> None:
        """Give each rank room for input and output, or for both in one."""
        self._own: list[range] = []
        for rank in range(self.num_ranks):
            first = len(self.cell_names)
            both = 0
            for shape in self._shapes:
                x, out = shape.buffers[rank].inputs, len(shape.buffers[rank].wanted)
                shift = shape.buffers[rank].shift
                alike = rank in shape.call.in_place and x and out
                base_in = max(0, -shift) if alike else 0
                base_out = max(0, shift) if alike else -1
                both = max(both, base_in + x, base_out + out)
                shape.base_in.append(first + base_in)
                shape.base_out.append(first + base_out if alike else -1)
            apart = first + both
            most = 0
            for shape in self._shapes:
                if shape.base_out[rank] < 0:
                    shape.base_out[rank] = apart
                    most = max(most, len(shape.buffers[rank].wanted))
            self.cell_names += [f"r{rank}.x[{i}]" for i in range(both)]
            self.cell_names += [f"r{rank}.out[{i}]" for i in range(most)]
            self._own.append(range(first, len(self.cell_names)))

    def _place_staging(self) -> None:
        """Give each rank staging, packets and their heads, twice."""
        self._stage: dict[tuple[int, int, bool], int] = {}
        self._heads: dict[tuple[int, int], int] = {}
        for rank in range(self.num_ranks):
            most = 0
            for shape in self._shapes:
                plan = shape.call.plan
                units = plan.stage_units[rank] * plan.schedule.blocks
                most = max(most, units * shape.tile)
            for parity in (0, 1):
                for packets in (False, True):
                    self._stage[rank, parity, packets] = len(self.cell_names)
                    word = "packets" if packets else "stage"
                    name = f"r{rank}.{word}.{parity}"
                    self.cell_names += [f"{name}[{i}]" for i in range(most)]
                self._heads[rank, parity] = len(self.cell_names)
                name = f"r{rank}.packets.{parity}.head"
                self.cell_names += [f"{name}[{i}]" for i in range(most)]

    # Who does what.

    def _agent(self, name: tuple[int, ...]) -> int:
        self.agents.append([])
        self.names.append(name)
        return len(self.agents) - 1

    def _event(self, what: tuple[Any, ...]) -> int:
        self.events.append(what)
        return len(self.events) - 1

    def _call(self, number: int, shape: _Shape, roll_call: bool) -> None:
        wanted = self._wanted(number, shape)
        for rank, caller in enumerate(self._callers):
            ops = self.agents[caller]
            event = self._event((rank, number, "begins"))
            have = shape.buffers[rank]
            given = {
                shape.base_in[rank] + i: self.values.given(number, rank, i)
                for i in range(have.inputs)
            }
            for cell in self._own[rank]:
                ops.append((GIVE, event, cell, given.get(cell, NOTHING)))
            if roll_call:
                for q in range(self.num_ranks):
                    channel = self._channel((rank, q))
                    ops.append((SIGNAL, event, channel, number + 1, False))
            lanes = list(self._lanes(number, rank, shape))
            ops.append((MEET, event, (number, rank, 0), 1 + len(lanes)))
            ops.append((MEET, event, (number, rank, 1), 1 + len(lanes)))
            for agent, body in lanes:
                inner = self.agents[agent]
                inner.append((MEET, event, (number, rank, 0), 1 + len(lanes)))
                inner += body
                inner.append((MEET, event, (number, rank, 1), 1 + len(lanes)))
            if roll_call:
                for q in range(self.num_ranks):
                    ops.append((WAIT, event, self._channel((q, rank)), number + 1))
            event = self._event((rank, number, "reads its result"))
            for i, want in enumerate(wanted[rank]):
                ops.append((TAKE, event, shape.base_out[rank] + i, want))
            outs = range(shape.base_out[rank], shape.base_out[rank] + len(have.wanted))
            for cell, value in given.items():
                if cell not in outs:
                    name = self.cell_names[cell]
                    ops.append((TAKE, event, cell, Want(value, (), False, name)))

    def _wanted(self, number: int, shape: _Shape) -> list[list[Want]]:
        """Return what the callers want to find in their outputs."""
        call, values = shape.call, self.values
        exact: list[list[int | None]] | None = None
        if call.program is not None:
            have = shape.buffers
            exact = _by_program(call.program, call.counts, values, number, have)
        found = []
        for rank, one in enumerate(shape.buffers):
            wants = []
            for i, parts in enumerate(one.wanted):
                leaves = tuple(sorted(values.given(number, q, j) for q, j in parts))
                value = exact[rank][i] if exact else None
                name = f"r{rank}.out[{i}]"
                wants.append(Want(value, leaves, one.summed, name))
            found.append(wants)
        return found

    def _channel(self, ends: tuple[int, ...]) -> int:
        return self.channels.setdefault(ends, len(self.channels))

    def _lanes(
        self, number: int, rank: int, shape: _Shape
    ) -> Iterator[tuple[int, list[tuple[Any, ...]]]]:
        """Yield the agents of one rank in one call, and what they do."""
        plan = shape.call.plan
        for lane, steps in enumerate(plan.ranks[rank]):
            for block in range(plan.schedule.blocks):
                whole = range(shape.tile)
                parts = [range(i, i + 1) for i in whole] if self.threads else [whole]
                for thread, part in enumerate(parts):
                    name = (rank, number, lane, block, thread)
                    agent = self._agent(name)
                    body: list[tuple[Any, ...]] = []
                    for tile in range(shape.tiles):
                        for index, step in enumerate(steps):
                            event = self._event((*name, tile, index))
                            if isinstance(step, Move):
                                at = (block, tile, part)
                                body += self._move(event, shape, step, at)
                            else:
                                epoch = shape.epoch + tile
                                at5 = (rank, lane, block, thread, len(parts))
                                body += self._sync(event, epoch, step, at5)
                    yield agent, body

    def _sync(
        self, event: int, epoch: int, step: Signal | Wait, at: tuple[int, ...]
    ) -> Iterator[tuple[Any, ...]]:
        """Yield a signal or wait of a lane: its threads meet before, or after."""
        rank, lane, block, thread, threads = at
        if not 0 <= step.rank < self.num_ranks:
            raise Fault(Outcome.OUTSIDE, f"rank {rank} names rank {step.rank}")
        value = epoch << 20 | step.n
        meeting = (*self.events[event][:4], *self.events[event][5:])
        if isinstance(step, Signal):
            if threads > 1:
                yield MEET, event, meeting, threads
            if thread == 0:
                ends = (rank, lane, step.rank, step.lane, block)
                yield SIGNAL, event, self._channel(ends), value, step.release
            return
        if thread == 0:
            ends = (step.rank, step.lane, rank, lane, block)
            yield WAIT, event, self._channel(ends), value
        if threads > 1:
            yield MEET, event, meeting, threads

    def _move(
        self, event: int, shape: _Shape, step: Move, at: tuple[Any, ...]
    ) -> Iterator[tuple[Any, ...]]:
        block, tile, part = at
        plan = shape.call.plan
        epoch = shape.epoch + tile
        summed = any(b.summed for b in shape.buffers)
        written: dict[int, object] = {}
        read: dict[int, object] = {}
        if not 0 <= step.start < step.stop <= len(shape.sizes):
            raise Fault(Outcome.OUTSIDE, f"atoms {step.start}:{step.stop}")
        for nth in range(step.stop - step.start):
            size = shape.sizes[step.start + nth]
            start = min(size, (tile * plan.schedule.blocks + block) * shape.tile)
            count = min(size, start + shape.tile) - start
            heads = [
                (self._head(shape, s, nth, (block, part.start), epoch), epoch)
                for s in step.srcs
                if s.packets
            ]
            says = not self.silent and not (self.threads and part.start < count)
            if heads and says:
                yield LOAD, event, tuple(heads), False
            for i in part:
                if i >= count:
                    break
                srcs = tuple(
                    self._cell(shape, s, nth, (block, start, i), epoch)
                    for s in step.srcs
                )
                dsts = [
                    self._cell(shape, d, nth, (block, start, i), epoch)
                    for d in step.dsts
                ]
                yield LOAD, event, srcs, True
                for dst, (cell, tag) in zip(step.dsts, dsts, strict=True):
                    divide = summed and step.finish and dst.space is Space.OUTPUT
                    yield STORE, event, cell, tag, divide
                    if written.setdefault(cell, (nth, i, dst)) != (nth, i, dst):
                        raise self._overlap(event, cell)
                for cell, _ in srcs:
                    read[cell] = (nth, i)
            for dst in step.dsts:
                if dst.packets and says:
                    head = self._head(shape, dst, nth, (block, part.start), epoch)
                    yield STORE, event, head, epoch, False
        for cell, (nth, i, _) in written.items():  # type: ignore[misc]
            if read.get(cell, (nth, i)) != (nth, i):
                raise self._overlap(event, cell)

    def _overlap(self, event: int, cell: int) -> Fault:
        text = f"a move reads and writes {self.cell_names[cell]} in no order"
        return Fault(Outcome.RACE, text, self.spell_event(event))

    def _cell(
        self, shape: _Shape, loc: Loc, nth: int, at: tuple[int, int, int], epoch: int
    ) -> tuple[int, int]:
        """Return the cell of one element at a location, and its tag."""
        block, start, i = at
        pos, plan = loc.pos + nth, shape.call.plan
        if not 0 <= loc.rank < self.num_ranks or pos < 0:
            raise self._outside(loc)
        if loc.space is Space.STAGE:
            units = plan.stage_units[loc.rank]
            if pos >= units:
                raise self._outside(loc)
            first = self._stage[loc.rank, epoch & 1, loc.packets]
            cell = first + (block * units + pos) * shape.tile + i
            return cell, epoch if loc.packets else PLAIN
        if loc.packets:
            raise self._outside(loc)
        reads = loc.space is Space.INPUT
        offsets = (shape.inputs if reads else shape.outputs)[loc.rank]
        have = shape.buffers[loc.rank]
        room = have.inputs if reads else len(have.wanted)
        if pos + 1 >= len(offsets) or offsets[pos] + start + i >= room:
            raise self._outside(loc)
        base = (shape.base_in if reads else shape.base_out)[loc.rank]
        return base + offsets[pos] + start + i, PLAIN

    def _head(
        self, shape: _Shape, loc: Loc, nth: int, at: tuple[int, int], epoch: int
    ) -> int:
        """Return the cell that says that packets have come, be they none."""
        if not 0 <= loc.rank < self.num_ranks:
            raise self._outside(loc)
        units = shape.call.plan.stage_units[loc.rank]
        if loc.space is not Space.STAGE or not 0 <= loc.pos + nth < units:
            raise self._outside(loc)
        unit = at[0] * units + loc.pos + nth
        return self._heads[loc.rank, epoch & 1] + unit * shape.tile + at[1]

    def _outside(self, loc: Loc) -> Fault:
        name = f"r{loc.rank}.{loc.space.name.lower()}[{loc.pos}]{'!' * loc.packets}"
        return Fault(Outcome.OUTSIDE, f"{name}, of which there is no such element")

    # Words.

    def spell_event(self, event: int) -> str:
        """Return what an event was, as text."""
        what = self.events[event]
        if len(what) == 3:
            return f"rank {what[0]}: the caller {what[2]} (call {what[1]})"
        rank, call, lane, block, thread, tile, index = what
        step = self.calls[call].plan.ranks[rank][lane][index]
        who = f"rank {rank}"
        who += f" lane {lane}" if len(self.calls[call].plan.ranks[rank]) > 1 else ""
        who += f" block {block}" if self.calls[call].plan.schedule.blocks > 1 else ""
        who += f" thread {thread}" if self.threads else ""
        when = f" call {call}" if len(self.calls) > 1 else ""
        when += f" tile {tile}" if self._shapes[call].tiles > 1 else ""
        return f"{who}{when}: {spell_step(rank, step)}"

    def call_of(self, event: int) -> int:
        """Return the call that an event is part of."""
        return self.events[event][1]

    def scope(self) -> str:
        """Return the calls in words."""
        return "; then ".join(map(str, self.calls))


def _offsets(runs: Sequence[BufferRun], sizes: Sequence[int]) -> list[int]:
    """Return where each position of a buffer begins, and where the last one ends."""
    held: list[int] = []
    for run in runs:
        for nth in range(run.stop - run.start):
            if not 0 <= run.atom + nth < len(sizes):
                raise Fault(Outcome.OUTSIDE, f"a buffer holds atom {run.atom + nth}")
            held.append(sizes[run.atom + nth])
    return [0, *accumulate(held)]


def check_program(program: Program, counts: tuple[int, ...]) -> None:
    """Raise `Fault` unless the program computes its collective for these counts."""
    values = Values()
    try:
        have = buffers(program.collective, program.num_ranks, program.params, counts)
        made = _by_program(program, counts, values, 0, have)
    except (KeyError, ValueError) as e:
        raise Fault(Outcome.UNDEFINED, f"{type(e).__name__} {e}") from None
    for rank, one in enumerate(have):
        for i, parts in enumerate(one.wanted):
            leaves = tuple(sorted(values.given(0, q, j) for q, j in parts))
            got = made[rank][i]
            if got is None:
                raise Fault(Outcome.UNDEFINED, f"r{rank}.out[{i}] is not written")
            whole = values.undivided(got) if one.summed else got
            if whole is None or values.leaves(whole) != leaves:
                text = f"r{rank}.out[{i}] is {values.spell(got)}"
                raise Fault(Outcome.WRONG, text)


def _by_program(
    program: Program,
    counts: tuple[int, ...],
    values: Values,
    number: int,
    have: tuple[Buffers, ...],
) -> list[list[int | None]]:
    kind = collectives.get(program.collective)
    shape = shape_of(program)
    symbols = kind.symbol_sizes(shape, np.asarray(counts), _UNIT).tolist()

    def chunks(runs: Any) -> list[int]:
        return [symbols[r.first + i] for r in runs for i in range(r.stop - r.start)]

    ranks = range(program.num_ranks)
    return from_program(
        program,
        [chunks(kind.input_runs(shape, r)) for r in ranks],
        [chunks(kind.output_runs(shape, r)) for r in ranks],
        values,
        number,
        divides=any(b.summed for b in have),
    )
