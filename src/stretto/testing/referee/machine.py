"""Calls of plans, laid out as a small machine: who does what to which cell.

An *agent* is whatever has an order of its own: a lane of a block or, when `threads` are
asked for, one thread of it, which has element i of every slice; then lanes are ordered
only by their signals and waits. A *caller* is an agent too, one for each rank: it
writes the input, starts the lanes, waits for them, reads the output, and uses the
memory again.

Legend: r rank, b block, t tile, e epoch, i element of a slice.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from stretto.plan import Move, Signal, Space, Wait, spell_step
from stretto.testing.referee.actions import (
    GIVE,
    LOAD,
    MEET,
    NOWHERE,
    SIGNAL,
    STORE,
    TAKE,
    WAIT,
    Action,
)
from stretto.testing.referee.calls import Call, LaidOut
from stretto.testing.referee.cells import PLAIN
from stretto.testing.referee.frame import Body, Ways, frame_of
from stretto.testing.referee.verdict import Fault, Outcome

__all__ = [
    "GIVE", "LOAD", "MEET", "NOWHERE", "PLAIN", "SIGNAL", "STORE", "TAKE", "WAIT",
    "Action", "Machine",
]  # fmt: skip


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
        self._frame = frame = frame_of(calls, Ways(threads, silent, roll_call))
        self.num_ranks, self.values = frame.num_ranks, frame.values
        self.cells, self.channels, self._laid = frame.cells, frame.channels, frame.laid
        self.agents: list[list[Action]] = [[] for _ in range(self.num_ranks)]
        """What each does: the callers first. Lists are shared, never changed."""
        self.names: list[tuple[int, ...]] = [(r,) for r in range(self.num_ranks)]
        """Who an agent is: its rank, then call, lane, block and thread of a lane."""
        lanes = [
            (number, rank, lane)
            for number, call in enumerate(calls)
            for rank in range(self.num_ranks)
            for lane in range(len(call.plan.ranks[rank]))
        ]
        self.events = frame.events
        """What an event is: agent's name, tile and step; a caller's say only when."""
        bodies = {one: self._known(*one) for one in lanes}
        self.events = frame.events.copy()
        for one in lanes:
            for name, ops in bodies[one] or self._lane(*one):
                self.names.append(name)
                self.agents.append(ops)
        for rank in range(self.num_ranks):
            ops = self.agents[rank]
            for number in range(len(calls)):
                does = frame.between[number][rank]
                meets = frame.meets(number, rank, self._many(number, rank))
                ops += [*does.before, *meets, *does.after]
            ops += frame.at_last[rank]

    # Who does what.

    def _many(self, number: int, rank: int) -> int:
        """Return how many agents a rank's lanes are in a call."""
        plan, tile = self.calls[number].plan, self._laid[number].tile
        threads = tile if self.threads else 1
        return len(plan.ranks[rank]) * plan.schedule.blocks * threads

    def _known(self, number: int, rank: int, lane: int) -> list[Body] | None:
        """Return a lane's agents as they were before; None when it comes first now.

        What comes twice is kept, since it will come again: it was not changed.
        """
        frame, lanes = self._frame, self.calls[number].plan.ranks[rank]
        steps = lanes[lane]
        key = (number, rank, lane, len(lanes), id(steps))
        found = frame.known.get(key)
        if found is None:
            if frame.seen.get(id(steps)) is not steps:
                return None
            found = frame.known[key] = (steps, self._lane(number, rank, lane))
        return found[1]

    def _lane(self, number: int, rank: int, lane: int) -> list[Body]:
        """Return the agents of a lane in one call, and what they do."""
        laid, call = self._laid[number], self.calls[number]
        steps = call.plan.ranks[rank][lane]
        does = [_Does.of(s, laid) if isinstance(s, Move) else s for s in steps]
        groups = call.together(rank, lane)
        self._frame.seen[id(steps)] = steps
        whole = range(laid.tile)
        parts = [range(i, i + 1) for i in whole] if self.threads else [whole]
        begin, end = self._frame.meets(number, rank, self._many(number, rank))
        events = self.events
        made: list[Body] = []
        for block in range(call.plan.schedule.blocks):
            for thread, part in enumerate(parts):
                name = (rank, number, lane, block, thread)
                body = [begin]
                for tile in range(laid.tiles):
                    at = (block, tile, part)
                    for group in groups:
                        done: list[Action] = []
                        for index in group:
                            event = len(events)
                            events.append((*name, tile, index))
                            step = does[index]
                            if isinstance(step, _Does):
                                self._move(done, event, step, at)
                            else:
                                self._sync(done, event, step, len(parts))
                        body += _side_by_side(done) if len(group) > 1 else done
                body.append(end)
                made.append((name, body))
        return made

    def _sync(
        self, done: list[Action], event: int, step: Signal | Wait, threads: int
    ) -> None:
        """Add a signal or wait of a lane: its threads meet before, or after."""
        rank, number, lane, block, thread, tile, index = self.events[event]
        if not 0 <= step.rank < self.num_ranks:
            raise Fault(Outcome.OUTSIDE, f"rank {rank} names rank {step.rank}")
        if threads > 1:
            meeting = (MEET, event, (rank, number, lane, block, tile, index), threads)
        signals = isinstance(step, Signal)
        if signals and threads > 1:
            done.append(meeting)
        if thread == 0:
            value = self._laid[number].epoch + tile << 20 | step.n
            if isinstance(step, Signal):
                ends = (rank, lane, step.rank, step.lane, block)
                channel = self._frame.channel(ends)
                done.append((SIGNAL, event, channel, value, step.release))
            else:
                ends = (step.rank, step.lane, rank, lane, block)
                done.append((WAIT, event, self._frame.channel(ends), value))
        if not signals and threads > 1:
            done.append(meeting)

    def _move(
        self, done: list[Action], event: int, does: _Does, at: tuple[int, int, range]
    ) -> None:
        """Add what one agent does of a move, for its part of the slices."""
        block, tile, part = at
        number = self.events[event][1]
        laid, place = self._laid[number], self.cells.at
        epoch, first = laid.epoch + tile, part.start
        start = (tile * laid.call.plan.schedule.blocks + block) * laid.tile
        step = does.step
        slices: list[_Slice] = []
        for nth, size in enumerate(does.sizes):
            here = part[: max(0, size - start - first)]
            heads = not self.silent and not (self.threads and here)
            if does.packets and heads:
                polled = tuple(
                    (self.cells.head(number, src, nth, (block, first), epoch), epoch)
                    for src in step.srcs
                    if src.packets
                )
                if polled:
                    done.append((LOAD, event, polled, NOWHERE))
            if here:
                one = (block, start, here[-1])
                srcs = [place(number, s, nth, one, epoch) for s in step.srcs]
                dsts = [place(number, d, nth, one, epoch) for d in step.dsts]
                if does.can_clash:
                    slices.append((nth, here, srcs, dsts))
                for i in here:
                    read = tuple([(cell + i, tag) for cell, tag in srcs])
                    done.append((LOAD, event, read, 0))
                    for (cell, tag), divide in zip(dsts, does.divides, strict=True):
                        done.append((STORE, event, cell + i, tag, divide, 0))
            if does.packets and heads:
                for dst in step.dsts:
                    if dst.packets:
                        head = self.cells.head(number, dst, nth, (block, first), epoch)
                        done.append((STORE, event, head, epoch, False, 0))
        clash = _in_no_order(step, slices) if slices else None
        if clash is not None:
            text = f"a move reads and writes {self.cells.name(clash)} in no order"
            raise Fault(Outcome.RACE, text, self.spell_event(event))

    # Words.

    def spell_event(self, event: int) -> str:
        """Return what an event was, as text."""
        what = self.events[event]
        if len(what) == 3:
            return f"rank {what[0]}: the caller {what[2]} (call {what[1]})"
        rank, call, lane, block, thread, tile, index = what
        plan = self.calls[call].plan
        who = f"rank {rank}"
        who += f" lane {lane}" if len(plan.ranks[rank]) > 1 else ""
        who += f" block {block}" if plan.schedule.blocks > 1 else ""
        who += f" thread {thread}" if self.threads else ""
        when = f" call {call}" if len(self.calls) > 1 else ""
        when += f" tile {tile}" if self._laid[call].tiles > 1 else ""
        return f"{who}{when}: {spell_step(rank, plan.ranks[rank][lane][index])}"

    def call_of(self, event: int) -> int:
        """Return the call that an event is part of."""
        return int(self.events[event][1])


class _Does(NamedTuple):
    """A move, and what of it is the same in every block and tile."""

    step: Move
    sizes: list[int]
    """Elements of each of its atoms."""
    packets: bool
    divides: list[bool]
    """For each destination, whether sums are divided there when the operator is."""
    can_clash: bool
    """Whether two of its elements may be one cell: not those of other memories."""

    @classmethod
    def of(cls, step: Move, laid: LaidOut) -> _Does:
        """Look at a move; `Fault` when its atoms are none."""
        if not 0 <= step.start < step.stop <= len(laid.sizes):
            raise Fault(Outcome.OUTSIDE, f"atoms {step.start}:{step.stop}")
        locs = (*step.dsts, *step.srcs)
        divides = laid.summed and step.finish
        return cls(
            step,
            laid.sizes[step.start : step.stop],
            any(loc.packets for loc in locs),
            [divides and dst.space is Space.OUTPUT for dst in step.dsts],
            len(locs) > len({(loc.rank, loc.packets) for loc in locs})
            or step.stop - step.start > 1,
        )


_Slice = tuple[int, range, list[tuple[int, int]], list[tuple[int, int]]]
"""Of a move's atom: which, its elements, and where its operands begin, with tags."""


def _in_no_order(step: Move, slices: list[_Slice]) -> int | None:
    """Return a cell that elements of a move store and others read or store, or None."""
    if len(slices) == 1 and len(step.dsts) == 1:  # no other atom, no other store
        _, here, srcs, [(to, _)] = slices[0]
        for cell, _ in srcs:
            if 0 < abs(cell - to) < len(here):
                return max(cell, to) + here[0]
        return None
    written: dict[int, tuple[int, int, int]] = {}
    read: dict[int, tuple[int, int]] = {}
    for nth, here, srcs, dsts in slices:
        for i in here:
            for nr, (cell, _) in enumerate(dsts):
                who = (nth, i, nr if step.dsts[nr].packets else -1)
                if written.setdefault(cell + i, who) != who:
                    return cell + i
            for cell, _ in srcs:
                read[cell + i] = (nth, i)
    for cell, (nth, i, _) in written.items():
        if read.get(cell, (nth, i)) != (nth, i):
            return cell
    return None


def _side_by_side(done: Sequence[Action]) -> list[Action]:
    """Return what moves do at once: all that they load, then all that they store."""
    if not done or done[0][0] in (SIGNAL, WAIT, MEET):
        return list(done)
    polls: list[Action] = []
    loads: list[Action] = []
    stores: list[Action] = []
    for action in done:
        if action[0] == LOAD and action[3] == NOWHERE:
            polls.append(action)
        elif action[0] == LOAD:
            loads.append((*action[:3], len(loads)))
        else:
            stores.append((*action[:5], max(0, len(loads) - 1)))
    return [*polls, *loads, *stores]
