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

from tests.checking.referee.actions import (
    GIVE,
    LOAD,
    MEET,
    NOWHERE,
    PUT,
    SIGNAL,
    STORE,
    TAKE,
    WAIT,
    Action,
)
from tests.checking.referee.calls import Call
from tests.checking.referee.cells import PLAIN
from tests.checking.referee.frame import frame_of
from tests.checking.referee.lanes import Ways

from stretto.compiler.plan import spell_step

__all__ = [
    "GIVE", "LOAD", "MEET", "NOWHERE", "PLAIN", "PUT", "SIGNAL", "STORE", "TAKE",
    "WAIT", "Action", "Machine",
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
        self.calls, self.threads = calls, threads
        frame = frame_of(calls, Ways(threads, silent, roll_call))
        self.num_ranks, self.values = frame.num_ranks, frame.values
        self.cells, self._laid = frame.cells, frame.laid
        self.channels, self.events = frame.lanes.channels, frame.lanes.events
        self.agents: list[list[Action]] = [[] for _ in range(self.num_ranks)]
        """What each does: the callers first. Lists are shared, never changed."""
        self.names: list[tuple[int, ...]] = [(r,) for r in range(self.num_ranks)]
        """Who an agent is: its rank, then call, lane, block and thread of a lane."""
        for number, call in enumerate(calls):
            for rank, lanes in enumerate(call.plan.ranks):
                many = frame.lanes.many(call, number, rank)
                meets = frame.meets(number, rank, many)
                for lane in range(len(lanes)):
                    at = (number, rank, lane)
                    for name, ops in frame.lanes.agents(call, at, *meets):
                        self.names.append(name)
                        self.agents.append(ops)
                does = frame.between[number][rank]
                self.agents[rank] += [*does.before, *meets, *does.after]
        for rank in range(self.num_ranks):
            self.agents[rank] += frame.at_last[rank]

    # Words.

    def spell_event(self, event: int) -> str:
        """Return what an event was, as text."""
        what = self.events[event]
        if len(what) == 3:
            return f"rank {what[0]}: the caller {what[2]} (call {what[1]})"
        rank, call, lane, block, thread, tile, step = what
        plan = self.calls[call].plan
        who = f"rank {rank}"
        who += f" lane {lane}" if len(plan.ranks[rank]) > 1 else ""
        who += f" block {block}" if plan.schedule.blocks > 1 else ""
        who += f" thread {thread}" if self.threads else ""
        when = f" call {call}" if len(self.calls) > 1 else ""
        when += f" tile {tile}" if self._laid[call].tiles > 1 else ""
        return f"{who}{when}: {spell_step(rank, step)}"

    def call_of(self, event: int) -> int:
        """Return the call that an event is part of."""
        return int(self.events[event][1])
