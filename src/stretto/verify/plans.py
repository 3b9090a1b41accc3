"""Prove a plan: promise, order, liveness, closedness, by running it on symbols.

Signals are counted and channels have one sender, so what a wait learns does not depend
on the interleaving: one run with vector clocks speaks for all of them.

- promise: outputs end with what the collective promises, finished once;
- ordered: conflicting accesses know of each other (`memory` has the rules);
- live: the run ends, so every run ends;
- closed: everybody's entry is known to everybody at the end, so that the next calls may
  use the same staging, and a caller's memory is left alone once it has left;
- in place: with `plan.in_place`, all of this while outputs lie in inputs.
"""

from __future__ import annotations

from collections import defaultdict, deque
from dataclasses import dataclass, field

import numpy as np

from stretto import collectives
from stretto.collectives import Shape
from stretto.errors import PlanError, PromiseError
from stretto.ir import Verified, undisturbed
from stretto.plan import Loc, Move, Plan, Signal, Space, Step, Wait, spell_step
from stretto.verify.clocks import Clock, Clocks
from stretto.verify.contents import Contents, add, describe, moved
from stretto.verify.memory import Memory, Row
from stretto.verify.shape import Buffers, check_shape

__all__ = ["verify_plan"]


@undisturbed
def verify_plan(plan: Plan) -> Verified[Plan]:
    """Return the plan as proved, or raise what is wrong with it and where."""
    check_shape(plan)
    _Run(plan).run()
    return Verified(plan)


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
        self.rank_of = [rank for rank, _, _ in self.lanes]
        self.clocks = Clocks(len(self.lanes))
        self.buffers = Buffers(plan, self.kind, self.shape)
        self.memory = Memory(plan, self.buffers, self.clocks, self.rank_of, self._tell)
        self.channels: dict[tuple[int, int], _Channel] = defaultdict(_Channel)

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
                for other in woken:
                    if other in blocked:
                        blocked.discard(other)
                        ready.append(other)
        stuck = [x for x, (_, _, steps) in enumerate(self.lanes) if at[x] < len(steps)]
        if stuck:
            raise PlanError(self._explain_hang(stuck, at))
        self._leave()
        self._check_promise()
        if unread := self.memory.unread():
            rank, unit = unread
            raise PlanError(
                f"{self.plan.name}: nobody reads r{rank}.stage[{unit}], so it may land "
                f"in a later call"
            )

    def _step(self, lane: int, step: Step) -> tuple[int, ...] | None:
        """Do a step and return the lanes it may have woken; None when it must wait."""
        match step:
            case Signal():
                return self._signal(lane, step)
            case Wait():
                return self._wait(lane, step)
        width = step.stop - step.start
        rows = [self.memory.row(src, width) for src in step.srcs]
        for src, row in zip(step.srcs, rows, strict=True):
            if src.packets and any(cell.packets is None for cell in row):
                return None
        return self._move(lane, self.clocks.tick(lane), step, rows)

    def _signal(self, lane: int, step: Signal) -> tuple[int, ...]:
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

    def _wait(self, lane: int, step: Wait) -> tuple[int, ...] | None:
        channel = self.channels[self.lane_of[step.rank, step.lane], lane]
        if channel.sent < step.n:
            return None
        self.clocks.tick(lane)
        while channel.unheard and channel.unheard[0][0] <= step.n:
            self.clocks.lanes[lane].learn(channel.unheard.popleft()[1])
        return ()

    def _move(
        self, lane: int, time: int, move: Move, rows: list[Row]
    ) -> tuple[int, ...]:
        for src, row in zip(move.srcs, rows, strict=True):
            self.memory.read(lane, time, move, src, row)
        held: list[tuple[Contents, bool]] = []
        for cells in zip(*rows, strict=True):
            total = cells[0].contents
            finished = cells[0].finished
            assert total is not None  # it was read
            for cell in cells[1:]:
                assert cell.contents is not None
                total = add(total, cell.contents)
                finished |= cell.finished
            if finished and (move.finish or len(cells) > 1):
                what = (
                    "combines or finishes a value that is finished (divided, for avg)"
                )
                raise PromiseError(self._tell(lane, move, what))
            held.append((total, finished))
        woken: list[int] = []
        for dst in move.dsts:
            self.memory.write(lane, time, move, dst, held)
            if dst.packets:
                woken += self.memory.lanes_of[dst.rank]
        return tuple(woken)

    # The end.

    def _leave(self) -> None:
        for rank in range(self.plan.num_ranks):
            mine = [self.clocks.lanes[x] for x in self.memory.lanes_of[rank]]
            order = np.max([clock.order for clock in mine], axis=0)
            data = np.max([clock.data for clock in mine], axis=0)
            for lane, time, wrote in self.memory.far[rank]:
                if (data if wrote else order)[lane] < time:
                    verb = "writing" if wrote else "reading"
                    raise PlanError(
                        f"{self.plan.name}: rank {rank} may leave while "
                        f"{self.memory.who(lane)} is still {verb} its caller's memory"
                    )
            known = np.zeros(self.plan.num_ranks, np.int32)
            np.maximum.at(known, self.rank_of, order)
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
            row = self.memory.row(Loc(rank, Space.OUTPUT, 0), len(starts))
            needs = self.kind.promise(self.shape, rank)
            for start, stop, chunk, ranks in needs:
                shift = chunk - start
                for at, cell in zip(starts, row, strict=True):
                    if not start <= at < stop:
                        continue
                    where = f"{self.plan.name}: rank {rank}, output[{at}]"
                    if cell.contents is None:
                        raise PromiseError(f"{where}: nobody stores it")
                    if cell.contents != ((at + shift, ranks, 1),):
                        seen = moved(cell.contents, at)
                        raise PromiseError(
                            f"{where} {describe(seen, at, shift, ranks)}"
                        )
                    if cell.finished != self.kind.reduces:
                        raise PromiseError(
                            f"{where}: is {'' if cell.finished else 'not '}finished "
                            f"(divided, for avg), want the opposite"
                        )

    # Words.

    def _at(self, lane: int, step: Step) -> str:
        rank = self.rank_of[lane]
        place = self.plan.place(step)
        told = f"{place}: " if place else ""
        who = self.memory.who(lane)
        return f"{told}{self.plan.name}: {who}: {spell_step(rank, step)}"

    def _tell(self, lane: int, move: Move, what: str) -> str:
        return f"{self._at(lane, move)}: {what}"

    def _explain_hang(self, stuck: list[int], at: list[int]) -> str:
        lines = [f"{self.plan.name}: can hang: nobody can go on:"]
        for lane in stuck[:8]:
            rank, _, steps = self.lanes[lane]
            step = spell_step(rank, steps[at[lane]])
            lines.append(f"  {self.memory.who(lane)} waits in: {step}")
        return "\n".join(lines)
