"""Prove a plan: promise, order, liveness, closedness, by running it on symbols.

Signals are counted and channels have one sender, so what a wait learns does not depend
on the interleaving: one run with vector clocks speaks for all of them.

- promise: outputs end with what the collective promises, finished once;
- bits: each is made as the program makes it, from the same values in the same order;
- ordered: conflicting accesses know of each other (`memory` has the rules);
- live: the run ends, so every run ends;
- closed: every lane knows at the end that every other has entered, so that the next
  epochs may use the same staging; and a caller's memory is left alone once it has left;
- in place: with `plan.in_place`, all of this while outputs lie in inputs (`aliasing`).
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from stretto import collectives
from stretto.collectives import Shape
from stretto.errors import PlanError, PromiseError
from stretto.ir import Program, Spans, Verified, undisturbed
from stretto.plan import (
    Groups,
    Loc,
    Move,
    Plan,
    Signal,
    Space,
    Step,
    Wait,
    spell_step,
)
from stretto.verify.clocks import Clock, Clocks
from stretto.verify.contents import describe
from stretto.verify.meaning import Meaning, meaning
from stretto.verify.memory import Cell, Held, Memory, Row
from stretto.verify.shape import check_shape, chunks_of
from stretto.verify.together import Places
from stretto.verify.values import Value, Values

__all__ = ["verify_plan"]


@undisturbed
def verify_plan(
    plan: Plan,
    means: Verified[Program] | Verified[Plan] | None = None,
    *,
    groups: Groups | None = None,
    in_any_order: bool = False,
) -> Verified[Plan]:
    """Return the plan as proved, or raise what is wrong with it and where.

    `means` is the program that it runs, or the plan that it was before a rewrite: its
    results are then proved to be those, to the last bit. A plan alone is proved to make
    what ranks have in common in one way.

    `groups` says which steps run at once. A group of moves waits for all its packets,
    then each thread loads all that is read at its elements and stores; `in_any_order`:
    each move runs by itself, before or after the others.
    """
    values = Values(plan.num_ranks)
    want: Meaning | None = None
    if means is not None:
        _check_kin(plan, means.value)
    if means is not None and collectives.get(plan.collective).reduces:
        if isinstance(means.value, Program):
            want = meaning(means.value, values)
        else:
            want = _ran(means.value, values).results()
    run = _ran(plan, values, groups, in_any_order=in_any_order)
    run.compare(want)
    return Verified(plan)


def _ran(
    plan: Plan,
    values: Values,
    groups: Groups | None = None,
    *,
    in_any_order: bool = False,
) -> _Run:
    """Return the plan's run, when it is a right one."""
    check_shape(plan)
    run = _Run(plan, values)
    if groups is not None:
        run.group(groups, in_any_order=in_any_order)
    run.run()
    return run


def _check_kin(plan: Plan, means: Program | Plan) -> None:
    """Raise unless both are of one collective, among the same ranks."""
    for what in ("collective", "num_ranks", "split", "params"):
        mine, theirs = getattr(plan, what), getattr(means, what)
        if mine != theirs:
            raise PlanError(
                f"{plan.name}: {what}={mine}; {means.name}, which it is to compute, "
                f"has {what}={theirs}"
            )


@dataclass(slots=True)
class _Channel:
    """What a lane told another, and the other has not waited for."""

    sent: int = 0
    heard: int = 0
    unheard: deque[tuple[int, Clock]] = field(default_factory=deque)


@dataclass(frozen=True, slots=True)
class _Group:
    """Steps of one kind that a lane runs at once."""

    steps: tuple[Step, ...]
    in_any_order: bool


class _Run:
    def __init__(self, plan: Plan, values: Values) -> None:
        self.plan, self.values = plan, values
        self.kind = collectives.get(plan.collective)
        self.shape = Shape(
            num_ranks=plan.num_ranks, split=plan.split, params=plan.params
        )
        self.lanes: list[tuple[int, int, Sequence[Step | _Group]]] = [
            (rank, lane, steps)
            for rank, lanes in enumerate(plan.ranks)
            for lane, steps in enumerate(lanes)
        ]
        self.lane_of = {(r, i): x for x, (r, i, _) in enumerate(self.lanes)}
        self.rank_of = [rank for rank, _, _ in self.lanes]
        self.clocks = Clocks(len(self.lanes))
        self.memory = Memory(plan, values, self.clocks, self.rank_of, self._tell)
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

    def _step(self, lane: int, step: Step | _Group) -> tuple[int, ...] | None:
        """Do a step and return the lanes it may have woken; None when it must wait."""
        match step:
            case Signal():
                return self._signal(lane, step)
            case Wait():
                return self._wait(lane, step)
            case _Group():
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
        places = Places(moves, self.memory)
        if wrong := places.disturb(in_any_order=group.in_any_order):
            raise PlanError(self._tell(lane, moves[wrong.later], wrong.why))
        loaded: list[tuple[int, list[Held]]] = []
        for move, read in zip(moves, rows, strict=True):
            assert read is not None, "all of them were there"
            time = self.clocks.tick(lane)
            loaded.append((time, self._load(lane, time, move, read)))
        told = [
            self._store(lane, time, move, held)
            for move, (time, held) in zip(moves, loaded, strict=True)
        ]
        return tuple(other for each in told for other in each)

    def _rows(self, move: Move) -> list[Row] | None:
        """Return what a move reads; None while packets are missing."""
        width = move.stop - move.start
        rows = [self.memory.row(src, width) for src in move.srcs]
        for src, row in zip(move.srcs, rows, strict=True):
            if src.packets and any(cell.packets is None for cell in row):
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
                f"{self._at(lane, step)}: signal {step.n} on this channel after "
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
        self.clocks.tick(lane)
        clock, unheard = self.clocks.lanes[lane], channel.unheard
        while unheard and unheard[0][0] < step.n:
            clock.learn(unheard.popleft()[1])
        if channel.heard < step.n:  # the first that says so much was heard, too
            channel.heard, told = unheard.popleft()
            clock.learn(told)
        return ()

    def _load(self, lane: int, time: int, move: Move, rows: list[Row]) -> list[Held]:
        for src, row in zip(move.srcs, rows, strict=True):
            self.memory.read(lane, time, move, src, row)
        return self._made(lane, move, rows)

    def _store(
        self, lane: int, time: int, move: Move, held: list[Held]
    ) -> tuple[int, ...]:
        woken: list[int] = []
        for dst in move.dsts:
            self.memory.write(lane, time, move, dst, held)
            if dst.packets:
                woken += self.memory.lanes_of[dst.rank]
        return tuple(woken)

    def _made(self, lane: int, move: Move, rows: list[Row]) -> list[Held]:
        """Return what a move makes of what it has read."""
        if len(rows) == 1:
            held: list[Held] = [(cell.value, cell.finished) for cell in rows[0]]
        else:
            combine = self.values.combine
            held = [
                (
                    combine([cell.value for cell in cells]),
                    any(cell.finished for cell in cells),
                )
                for cells in zip(*rows, strict=True)
            ]
        if (move.finish or len(rows) > 1) and any(done for _, done in held):
            what = "combines or finishes a value that is finished (divided, for avg)"
            raise PromiseError(self._tell(lane, move, what))
        return held

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
        for lane, clock in enumerate(self.clocks.lanes):
            if not clock.order.all():
                other = int(np.argmin(clock.order))
                raise PlanError(
                    f"{self.plan.name}: not closed: {self.memory.who(lane)} may end an "
                    f"epoch before {self.memory.who(other)} has entered it, and "
                    f"overwrite in a later one what {self.memory.who(other)} still "
                    f"uses; want a credit"
                )

    def _check_promise(self) -> None:
        for rank in range(self.plan.num_ranks):
            spans, row = self._output(rank)
            for start, stop, chunk, ranks in self.kind.promise(self.shape, rank):
                shift = chunk - start
                for (at, _), cell in zip(spans, row, strict=True):
                    if not start <= at < stop:
                        continue
                    where = f"{self.plan.name}: rank {rank}, output[{at}]"
                    if cell.value is None:
                        raise PromiseError(f"{where}: nobody stores it")
                    seen = self.values.contents(cell.value, at)
                    if seen != ((shift, ranks, 1),):
                        told = describe(seen, at, shift, ranks)
                        raise PromiseError(f"{where} {told}{self._stored(cell)}")
                    if cell.finished != self.kind.reduces:
                        raise PromiseError(
                            f"{where}: is {'' if cell.finished else 'not '}finished "
                            f"(divided, for avg), want the opposite{self._stored(cell)}"
                        )

    # To the last bit.

    def results(self) -> Meaning:
        """Return what the outputs hold in the end."""
        found: Meaning = []
        for rank in range(self.plan.num_ranks):
            held: Spans[Value] = Spans()
            for (a, b), cell in zip(*self._output(rank), strict=True):
                if cell.value is not None:
                    expression, chunk = cell.value
                    held.write(a, b, (expression, chunk - a))
            found.append(held)
        return found

    def compare(self, want: Meaning | None) -> None:
        """Raise unless outputs are made as wanted, or alike on all ranks."""
        if not self.kind.reduces:
            return  # what is only moved can be made in one way
        if want is None:
            self._compare_ranks()
            return
        for rank, made in enumerate(want):
            pieces = list(made)
            nth = 0
            for (a, b), cell in zip(*self._output(rank), strict=True):
                while pieces[nth][1] <= a:
                    nth += 1
                at = nth
                while at < len(pieces) and pieces[at][0] < b:
                    expression, shift = pieces[at][2]
                    if cell.value != (expression, a + shift):
                        value = expression, a + shift
                        self._differs(rank, a, cell, value, "its program")
                    at += 1

    def _compare_ranks(self) -> None:
        made: dict[tuple[int, int], tuple[int, Value | None]] = {}
        for rank in range(self.plan.num_ranks):
            for (a, _), cell in zip(*self._output(rank), strict=True):
                if cell.value is None:
                    continue
                ((chunk, ranks, _),) = self.values.contents(cell.value, 0)
                other, value = made.setdefault((ranks, chunk), (rank, cell.value))
                if cell.value != value:
                    self._differs(rank, a, cell, value, f"rank {other}")

    def _differs(
        self, rank: int, at: int, cell: Cell, want: Value | None, whose: str
    ) -> None:
        spell = self.values.spell
        assert cell.value is not None and want is not None  # noqa: PT018
        raise PromiseError(
            f"{self.plan.name}: rank {rank}, output[{at}] is made in another order "
            f"than by {whose}, so its last bits differ: {spell(cell.value)}, "
            f"want {spell(want)}{self._stored(cell)}"
        )

    def _output(self, rank: int) -> tuple[list[tuple[int, int]], Row]:
        """Return the chunks of every position of a rank's output, and its cells."""
        spans = chunks_of(self.plan.outputs[rank], self.plan.atoms)
        return spans, self.memory.row(Loc(rank, Space.OUTPUT, 0), len(spans))

    # Words.

    def _stored(self, cell: Cell) -> str:
        places = self.plan.places
        return (
            f". Last stored at {places[cell.op]}" if 0 <= cell.op < len(places) else ""
        )

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
            step = steps[at[lane]]
            first = step.steps[0] if isinstance(step, _Group) else step
            lines.append(
                f"  {self.memory.who(lane)} waits in: {spell_step(rank, first)}"
            )
        return "\n".join(lines)
