"""Calls of plans, laid out as a small machine: who does what to which cell.

An *agent* is whatever has an order of its own: a lane of a block or, when `threads` are
asked for, one thread of it, which has element i of every slice; then lanes are ordered
only by their signals and waits. A *caller* is an agent too, one for each rank: it
writes the input, starts the lanes, waits for them, reads the output, and uses the
memory again.

Legend: r rank, b block, t tile, e epoch, i element of a slice.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, TypeAlias

from stretto.plan import Move, Signal, Space, Wait, spell_step
from stretto.testing.referee.calls import Call, LaidOut, Want, lay_out, wanted
from stretto.testing.referee.cells import PLAIN, Cells
from stretto.testing.referee.values import NOTHING, Values
from stretto.testing.referee.verdict import Fault, Outcome

__all__ = [
    "GIVE", "LOAD", "MEET", "NOWHERE", "PLAIN", "PUT", "SIGNAL", "STORE", "TAKE",
    "WAIT",
    "Action", "Machine",
]  # fmt: skip

LOAD, STORE, SIGNAL, WAIT, MEET, GIVE, TAKE, PUT = range(8)
"""What agents do. Each is a tuple: the kind, the number of its event, and

    LOAD    ((cell, tag), ...), where to keep their combination (NOWHERE: not at all)
    STORE   cell, tag, whether to divide, where the value was kept
    SIGNAL  channel, value, whether it releases, the rank where that is on another host
    PUT     cells, from and to, of ranks on different hosts; the rank that it goes to
    WAIT    channel, value
    MEET    a key, how many agents meet
    GIVE    cell, value
    TAKE    cell, a `Want`
"""
NOWHERE = -1
Action: TypeAlias = tuple[Any, ...]


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
        self.agents: list[list[Action]] = []
        self.names: list[tuple[int, ...]] = []
        """Who an agent is: its rank, then call, lane, block and thread of a lane."""
        self.events: list[tuple[Any, ...]] = []
        """What an event is: agent's name, tile and step; a caller's say only when."""
        self.channels: dict[tuple[int, ...], int] = {}
        self._laid: list[LaidOut] = []
        epoch = 1
        for call in calls:
            self._laid.append(lay_out(call, epoch))
            epoch += self._laid[-1].tiles
        self.cells = Cells(self.num_ranks, self._laid)
        self._callers = [self._agent((r,)) for r in range(self.num_ranks)]
        for number, laid in enumerate(self._laid):
            wants = wanted(laid, self.values, number)
            for rank in range(self.num_ranks):
                self._call(number, rank, wants[rank], roll_call)
        for rank, caller in enumerate(self._callers):
            event = self._event((rank, len(calls), "frees its memory"))
            for cell in self.cells.own[rank]:
                self.agents[caller].append((GIVE, event, cell, NOTHING))

    # Who does what.

    def _agent(self, name: tuple[int, ...]) -> int:
        self.agents.append([])
        self.names.append(name)
        return len(self.agents) - 1

    def _event(self, what: tuple[Any, ...]) -> int:
        self.events.append(what)
        return len(self.events) - 1

    def _channel(self, ends: tuple[int, ...]) -> int:
        return self.channels.setdefault(ends, len(self.channels))

    def _call(self, number: int, rank: int, wants: list[Want], roll_call: bool) -> None:
        """Let a caller make one call, and its lanes run."""
        ops = self.agents[self._callers[rank]]
        everybody = range(self.num_ranks) if roll_call else ()
        first, out = self.cells.inputs[number][rank], self.cells.outputs[number][rank]
        given = {
            first + i: self.values.given(number, rank, i)
            for i in range(self._laid[number].buffers[rank].inputs)
        }
        event = self._event((rank, number, "begins"))
        for cell in self.cells.own[rank]:
            ops.append((GIVE, event, cell, given.get(cell, NOTHING)))
        for q in everybody:
            ends = self._channel((rank, q))
            ops.append((SIGNAL, event, ends, number + 1, False, NOWHERE))
        lanes = list(self._lanes(number, rank))
        begin = (MEET, event, (number, rank, "begin"), 1 + len(lanes))
        end = (MEET, event, (number, rank, "end"), 1 + len(lanes))
        for agent, body in lanes:
            self.agents[agent] += [begin, *body, end]
        ops += [begin, end]
        for q in everybody:
            ops.append((WAIT, event, self._channel((q, rank)), number + 1))
        event = self._event((rank, number, "reads its result"))
        for i, want in enumerate(wants):
            ops.append((TAKE, event, out + i, want))
        for cell, value in given.items():
            if not out <= cell < out + len(wants):
                want = Want(value, (), False, self.cells.name(cell))
                ops.append((TAKE, event, cell, want))

    def _lanes(self, number: int, rank: int) -> Iterator[tuple[int, list[Action]]]:
        """Yield the agents of one rank in one call, and what they do."""
        laid = self._laid[number]
        plan = laid.call.plan
        whole = range(laid.tile)
        parts = [range(i, i + 1) for i in whole] if self.threads else [whole]
        for lane, steps in enumerate(plan.ranks[rank]):
            for block in range(plan.schedule.blocks):
                for thread, part in enumerate(parts):
                    name = (rank, number, lane, block, thread)
                    agent = self._agent(name)
                    body: list[Action] = []
                    for tile in range(laid.tiles):
                        at = (block, tile, part)
                        for group in laid.groups(rank, lane):
                            done: list[Action] = []
                            for index in group:
                                step = steps[index]
                                event = self._event((*name, tile, index))
                                if isinstance(step, Move):
                                    done += self._move(event, step, at)
                                else:
                                    done += self._sync(event, step, len(parts))
                            body += _side_by_side(done) if len(group) > 1 else done
                    yield agent, body

    def _sync(self, event: int, step: Signal | Wait, threads: int) -> Iterator[Action]:
        """Yield a signal or wait of a lane: its threads meet before, or after."""
        rank, number, lane, block, thread, tile, index = self.events[event]
        if not 0 <= step.rank < self.num_ranks:
            raise Fault(Outcome.OUTSIDE, f"rank {rank} names rank {step.rank}")
        value = self._laid[number].epoch + tile << 20 | step.n
        meeting = (MEET, event, (rank, number, lane, block, tile, index), threads)
        if isinstance(step, Signal):
            if threads > 1:
                yield meeting
            if thread == 0:
                ends = (rank, lane, step.rank, step.lane, block)
                far = step.rank if self._is_far(number, rank, step.rank) else NOWHERE
                yield SIGNAL, event, self._channel(ends), value, step.release, far
            return
        if thread == 0:
            ends = (step.rank, step.lane, rank, lane, block)
            yield WAIT, event, self._channel(ends), value
        if threads > 1:
            yield meeting

    def _move(
        self, event: int, step: Move, at: tuple[int, int, range]
    ) -> Iterator[Action]:
        """Yield what one agent does of a move, for its part of the slices."""
        block, tile, part = at
        number = self.events[event][1]
        laid, place = self._laid[number], self.cells.at
        blocks, epoch = laid.call.plan.schedule.blocks, laid.epoch + tile
        if not 0 <= step.start < step.stop <= len(laid.sizes):
            raise Fault(Outcome.OUTSIDE, f"atoms {step.start}:{step.stop}")
        rank = self.events[event][0]
        far = self._far_put(number, rank, step)
        written: dict[int, object] = {}
        read: dict[int, object] = {}
        for nth in range(step.stop - step.start):
            size = laid.sizes[step.start + nth]
            start = min(size, (tile * blocks + block) * laid.tile)
            count = min(size, start + laid.tile) - start
            heads = not self.silent and not (self.threads and part.start < count)
            yield from self._heads(event, step, nth, (block, part.start), epoch, heads)
            for i in part[: max(0, count - part.start)]:
                one = (block, start, i)
                srcs = tuple(place(number, s, nth, one, epoch) for s in step.srcs)
                if far != NOWHERE:
                    cell, _ = place(number, step.dsts[0], nth, one, epoch)
                    yield PUT, event, srcs[0][0], cell, far
                    continue
                yield LOAD, event, srcs, 0
                for nr, dst in enumerate(step.dsts):
                    cell, tag = place(number, dst, nth, one, epoch)
                    divide = laid.summed and step.finish and dst.space is Space.OUTPUT
                    yield STORE, event, cell, tag, divide, 0
                    who = (nth, i, nr if dst.packets else -1)
                    if written.setdefault(cell, who) != who:
                        raise self._unordered(event, cell)
                for cell, _ in srcs:
                    read[cell] = (nth, i)
            for dst in step.dsts:
                if dst.packets and heads:
                    cell = self.cells.head(number, dst, nth, (block, part.start), epoch)
                    yield STORE, event, cell, epoch, False, 0
        for cell, (nth, i, _) in written.items():  # type: ignore[misc]
            if read.get(cell, (nth, i)) != (nth, i):
                raise self._unordered(event, cell)

    def _is_far(self, number: int, rank: int, other: int) -> bool:
        hosts = self.calls[number].plan.hosts
        inside = 0 <= other < len(hosts)
        return inside and hosts[rank] != hosts[other]

    def _far_put(self, number: int, rank: int, step: Move) -> int:
        """Return the rank on another host that a move puts to; `Fault` if it cannot."""
        away = [
            x for x in (*step.dsts, *step.srcs) if self._is_far(number, rank, x.rank)
        ]
        if not away:
            return NOWHERE
        dst, plain = step.dsts[0], not any(x.packets for x in (*step.dsts, *step.srcs))
        single = len(step.dsts) == len(step.srcs) == len(away) == 1 and dst is away[0]
        staged = dst.space is Space.STAGE and step.srcs[0].rank == rank
        if single and plain and staged and not step.finish:
            return dst.rank
        text = f"rank {rank} reaches rank {away[0].rank}, on another host, by no put"
        raise Fault(Outcome.OUTSIDE, text)

    def _heads(
        self,
        event: int,
        step: Move,
        nth: int,
        part: tuple[int, int],
        epoch: int,
        wait: bool,
    ) -> Iterator[Action]:
        """Yield the wait for packets that may be none."""
        number = self.events[event][1]
        heads = tuple(
            (self.cells.head(number, src, nth, part, epoch), epoch)
            for src in step.srcs
            if src.packets
        )
        if heads and wait:
            yield LOAD, event, heads, NOWHERE

    def _unordered(self, event: int, cell: int) -> Fault:
        text = f"a move reads and writes {self.cells.name(cell)} in no order"
        return Fault(Outcome.RACE, text, self.spell_event(event))

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
