"""Run a plan on symbols: who does what, in an order that speaks for all orders.

Signals of a channel rise and have one sender, so what a wait learns does not depend
on the interleaving: one run with vector clocks speaks for all of them.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from stretto.compiler.plan import Groups, Move, Plan, Signal, Step, Wait, spell_step
from stretto.compiler.verify.clocks import Clocks, VectorClock
from stretto.compiler.verify.memory import Cell, Held, PlanMemory, Row, Stored
from stretto.compiler.verify.together import TouchedPlaces
from stretto.compiler.verify.values import Values
from stretto.errors import PlanError, PromiseError

_FINISHED = "combines or finishes a value that is finished (divided, for avg)"


@dataclass(slots=True)
class _Channel:
    """What a lane told another, and the other has not waited for."""

    sent: int = 0
    heard: int = 0
    unheard: deque[tuple[int, VectorClock]] = field(default_factory=deque)


@dataclass(frozen=True, slots=True)
class _Group:
    """Steps of one kind that a lane runs at once."""

    steps: tuple[Step, ...]
    in_any_order: bool


class SymbolicRun:
    """A plan that is run on symbols, and what it leaves."""

    def __init__(self, plan: Plan, values: Values) -> None:
        self.plan, self.values = plan, values
        self.kind, self.shape = plan.kind, plan.shape
        self.lanes: list[tuple[int, int, Sequence[Step | _Group]]] = [
            (rank, lane, steps)
            for rank, lanes in enumerate(plan.ranks)
            for lane, steps in enumerate(lanes)
        ]
        self.lane_of = {(r, i): x for x, (r, i, _) in enumerate(self.lanes)}
        self.rank_of = [rank for rank, _, _ in self.lanes]
        self.clocks = Clocks(len(self.lanes))
        self.memory = PlanMemory(plan, values, self.clocks, self.rank_of)
        self.channels: dict[tuple[int, int], _Channel] = defaultdict(_Channel)

    def group(self, groups: Groups, *, in_any_order: bool) -> None:
        """Run steps at once, as many as the groups say."""
        for index, (rank, lane, _) in enumerate(self.lanes):
            steps = self.plan.ranks[rank][lane]
            found: list[Step | _Group] = []
            at = 0
            for size in groups[rank][lane]:
                part = tuple(steps[at : at + size])
                found.append(part[0] if size == 1 else _Group(part, in_any_order))
                at += size
            assert at == len(steps), "groups cover a lane"
            self.lanes[index] = rank, lane, found

    # Running: any lane that can go on does.

    def run(self) -> None:
        """Run every lane to its end, or raise why it must not or cannot."""
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
        if unread := self.memory.unread():
            rank, unit = unread
            raise PlanError(
                f"{self.plan.name}: nobody reads r{rank}.stage[{unit}], so it may land "
                f"in a later call"
            )

    def _step(self, lane: int, step: Step | _Group) -> Sequence[int] | None:
        """Do a step and return the lanes it may have woken; None when it must wait."""
        if isinstance(step, Signal):
            return self._signal(lane, step)
        if isinstance(step, Wait):
            return self._wait(lane, step)
        if isinstance(step, _Group):
            return self._at_once(lane, step)
        rows = self._rows(step)
        if rows is None:
            return None
        time = self.clocks.tick(lane)
        return self._store(lane, time, step, self._load(lane, time, step, rows))

    def _at_once(self, lane: int, group: _Group) -> tuple[int, ...] | None:
        """Do the steps of a group, which wait together."""
        moves = [step for step in group.steps if isinstance(step, Move)]
        if not moves:
            waits = [step for step in group.steps if isinstance(step, Wait)]
            if any(self._channel(lane, w).sent < w.n for w in waits):
                return None
            woken = [self._step(lane, step) for step in group.steps]
            return tuple(other for each in woken if each for other in each)
        rows = [self._rows(move) for move in moves]
        if any(row is None for row in rows):
            return None
        places = TouchedPlaces(moves, self.memory)
        if wrong := places.disturb(in_any_order=group.in_any_order):
            raise PlanError(self.memory.tell(lane, moves[wrong.later], wrong.why))
        before = self.clocks.times[lane]
        loaded: list[tuple[int, list[Held]]] = []
        for move, read in zip(moves, rows, strict=True):
            assert read is not None, "all of them were there"
            time = self.clocks.tick(lane)
            loaded.append((time, self._load(lane, time, move, read)))
        told = [
            self._store(lane, time, move, held, before)
            for move, (time, held) in zip(moves, loaded, strict=True)
        ]
        return tuple(other for each in told for other in each)

    def _rows(self, move: Move) -> list[Row] | None:
        """Return what a move reads; None while packets are missing."""
        rows = self.memory.rows(move.srcs, move.stop - move.start)
        for src, row in zip(move.srcs, rows):  # noqa: B905  (one row a source)
            if src.packets:
                for cell in row:
                    if cell.packets is None:
                        return None
        return rows

    def _channel(self, lane: int, step: Wait) -> _Channel:
        return self.channels[self.lane_of[step.rank, step.lane], lane]

    def _signal(self, lane: int, step: Signal) -> tuple[int, ...]:
        self.clocks.tick(lane)
        target = self.lane_of[step.rank, step.lane]
        channel = self.channels[lane, target]
        if step.n <= channel.sent:
            raise PlanError(
                f"{self.memory.at(lane, step)}: signal {step.n} on this channel after "
                f"{channel.sent}: they rise"
            )
        channel.sent = step.n
        told = self.clocks.message(lane, release=step.release)
        channel.unheard.append((step.n, told))
        return (target,)

    def _wait(self, lane: int, step: Wait) -> tuple[int, ...] | None:
        channel = self._channel(lane, step)
        if channel.sent < step.n:
            return None
        time, unheard = self.clocks.tick(lane), channel.unheard
        while unheard and unheard[0][0] < step.n:
            self.clocks.learn(lane, unheard.popleft()[1])
        if channel.heard < step.n:  # the first that says so much was heard, too
            channel.heard, told = unheard.popleft()
            self.clocks.learn(lane, told)
            if self.plan.is_far(self.rank_of[lane], step.rank):
                way = self.lane_of[step.rank, step.lane], self.rank_of[lane]
                self.memory.landings.note(lane, time, way, told)
        return ()

    def _load(self, lane: int, time: int, move: Move, rows: list[Row]) -> list[Held]:
        for src, row in zip(move.srcs, rows, strict=True):
            self.memory.read(lane, time, move, src, row)
        return self._made(lane, move, rows)

    def _store(
        self,
        lane: int,
        time: int,
        move: Move,
        held: list[Held],
        told: int | None = None,
    ) -> Sequence[int]:
        """Store what a move has made; its packets tell of this lane up to `told`.

        Who hears of a group by one move's packets has heard of the threads that store
        them. Others may have more to load: moves of a group differ in length.
        """
        stored, message = Stored(lane, time, move.op), None
        write, lanes_of = self.memory.write, self.memory.lanes_of
        woken: list[int] = []
        for dst in move.dsts:
            if not dst.packets:
                write(stored, move, dst, held, None)
                continue
            if message is None:
                message = self.clocks.message(lane, release=False, until=told)
            write(stored, move, dst, held, message)
            woken += lanes_of[dst.rank]
        return woken

    def _made(self, lane: int, move: Move, rows: list[Row]) -> list[Held]:
        """Return what a move makes of what it has read."""
        if move.finish or len(rows) > 1:
            for row in rows:
                for cell in row:
                    if cell.finished:
                        raise PromiseError(self.memory.tell(lane, move, _FINISHED))
        if len(rows) == 1:
            return [(cell.value, cell.finished) for cell in rows[0]]
        combine = self.values.combine
        return [
            (combine([cell.value for cell in cells]), False)
            for cells in zip(*rows, strict=True)
        ]

    # The end.

    def _leave(self) -> None:
        for rank in range(self.plan.num_ranks):
            mine = [self.clocks.lanes[x] for x in self.memory.lanes_of[rank]]
            order = np.max([clock.order for clock in mine], axis=0)
            data = np.max([clock.data for clock in mine], axis=0)
            for (lane, wrote), time in self.memory.visits[rank].items():
                if (data if wrote else order)[lane] < time:
                    verb = "writing" if wrote else "reading"
                    raise PlanError(
                        f"{self.plan.name}: rank {rank} may leave while "
                        f"{self.memory.who(lane)} is still {verb} its caller's memory"
                    )
        for lane, clock in enumerate(self.clocks.lanes):
            if not clock.order.all():
                other = int(np.argmin(clock.order))
                raise PlanError(
                    f"{self.plan.name}: not closed: {self.memory.who(lane)} may end an "
                    f"epoch before {self.memory.who(other)} has entered it, and "
                    f"overwrite in a later one what {self.memory.who(other)} still "
                    f"uses; want a credit"
                )

    # Words.

    def stored(self, cell: Cell) -> str:
        """Return the end of a message: whose line made what a place holds."""
        places = self.plan.places
        op = cell.last.op
        return f". Last stored at {places[op]}" if 0 <= op < len(places) else ""

    def _explain_hang(self, stuck: list[int], at: list[int]) -> str:
        lines = [f"{self.plan.name}: can hang: nobody can go on:"]
        for lane in stuck[:8]:
            rank, _, steps = self.lanes[lane]
            step = steps[at[lane]]
            first = step.steps[0] if isinstance(step, _Group) else step
            lines.append(
                f"  {self.memory.who(lane)} waits in: {spell_step(rank, first)}"
            )
        return "\n".join(lines)
