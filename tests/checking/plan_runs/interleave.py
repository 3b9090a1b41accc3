"""Run a plan on arrays, its lanes in a random order, memory as weak as is allowed.

It is the simulator as oracle and as race test. Which lane goes on is drawn at random,
and what a lane stores lands at some later, random moment: at the latest when it sends a
signal that releases, or itself reads the place, or its rank's caller reads the result.
A plan that needs more than its signals promise comes out wrong under some seed.

What is put to another host lands later still, and is read from its source only then: at
the latest when its rank has waited for a signal that the lane sent there afterwards
(`flights`).
"""

from __future__ import annotations

import functools
import random
from collections.abc import Callable, Iterator, Sequence

import numpy as np
from tests.checking.plan_runs.flights import Flights
from tests.checking.plan_runs.memory import Place, SimulatedMemory

from stretto.compiler.plan import (
    Move,
    Plan,
    Signal,
    Space,
    Step,
    Verified,
    Wait,
    spell_step,
)
from stretto.errors import CallError, PlanError
from stretto.program.elements import Array, Operator, combine, finish

__all__ = ["interleave"]


class _Task:
    """One lane of a rank, for one block: its own counter through steps and epochs."""

    __slots__ = ("at", "block", "epoch", "lane", "rank", "steps", "stores")

    def __init__(
        self, rank: int, lane: int, block: int, steps: tuple[Step, ...]
    ) -> None:
        self.rank, self.lane, self.block, self.steps = rank, lane, block, steps
        self.at = self.epoch = 0
        self.stores: list[_Store] = []
        """What it stored and others may not see yet."""


class _Store:
    __slots__ = ("announces", "place", "target", "value")

    def __init__(
        self, place: Place, target: Array, value: Array, announces: int | None
    ) -> None:
        self.place, self.target, self.value = place, target, value
        self.announces = announces


def interleave(
    plan: Verified[Plan],
    inputs: Sequence[Array],
    *,
    dtype: str,
    op: Operator | str = Operator.SUM,
    counts: Sequence[int],
    seed: int,
    in_place: bool = False,
    tile_bytes: int | None = None,
) -> list[Array]:
    """Return every rank's flat output under the interleaving that the seed draws.

    `inputs` are flat, in the storage type of `dtype`, empty where a rank has none. A
    run in which nobody can go on raises `PlanError`.
    """
    p = plan.value
    if in_place and not p.in_place:
        raise CallError(f"{p.name}: not for use in place; want a plan lowered so")
    rng = np.random.default_rng(seed)
    memory = SimulatedMemory(
        p,
        inputs,
        dtype=dtype,
        counts=counts,
        in_place=in_place,
        tile_bytes=tile_bytes,
        rng=rng,
    )
    run = _Run(p, memory, Operator.named(op), dtype, random.Random(seed).random)
    return run.run()


class _Run:
    def __init__(
        self, plan: Plan, memory: SimulatedMemory, op: Operator, dtype: str,
        random: Callable[[], float],
    ) -> None:  # fmt: skip
        self.plan, self.memory, self.dtype, self.random = plan, memory, dtype, random
        divides = plan.kind.reduces
        self.op, self.final = op, op if divides else Operator.SUM
        self.tasks = [
            _Task(rank, lane, block, steps)
            for rank, lanes in enumerate(plan.ranks)
            for lane, steps in enumerate(lanes)
            for block in range(memory.blocks)
        ]
        self.sent: dict[tuple[int, int, int, int, int], int] = {}
        """By channel and block, the flag: an epoch and the signals sent in it."""
        self.results: dict[int, Array] = {}
        self.flights = Flights()

    def run(self) -> list[Array]:
        """Go on at random until every rank has left."""
        going = list(self.tasks)
        unfinished = [0] * self.plan.num_ranks
        for task in going:
            unfinished[task.rank] += 1
        while going:
            self._land_some()
            chosen = next(
                (t for t in self._drawn(going) if self._ended(t) or self._advance(t)),
                None,
            )
            if chosen is None and not self._land_one():
                raise PlanError(self._explain(going))
            if chosen is not None and self._ended(chosen):
                going.remove(chosen)
                unfinished[chosen.rank] -= 1
                if not unfinished[chosen.rank]:
                    self._leave(chosen.rank)
        for rank in range(self.plan.num_ranks):
            if rank not in self.results:  # it has no lanes
                self._leave(rank)
        return [self.results[rank] for rank in range(self.plan.num_ranks)]

    def _drawn(self, going: Sequence[_Task]) -> Iterator[_Task]:
        """Yield every lane once, in a random order that is drawn as it is needed."""
        left = list(going)
        while left:
            i = int(self.random() * len(left))
            left[i], left[-1] = left[-1], left[i]
            yield left.pop()

    def _leave(self, rank: int) -> None:
        """Let the rank's caller read its output: its own stores are in, no others'."""
        for task in self.tasks:
            if task.rank == rank:
                self._land(task, lambda store: store.place[0] == rank)
        self.flights.leave(rank)
        self.results[rank] = self.memory.output(rank)

    # One lane.

    def _ended(self, task: _Task) -> bool:
        return task.epoch >= self.memory.bound.tiles or not task.steps

    def _advance(self, task: _Task) -> bool:
        """Do one step; False when it has to wait."""
        step = task.steps[task.at]
        match step:
            case Wait():
                channel = (step.rank, step.lane, task.rank, task.lane, task.block)
                flag = (task.epoch << 20) + step.n
                if self.sent.get(channel, 0) < flag:
                    return False
                if self.plan.is_far(task.rank, step.rank):
                    self.flights.land_before(channel, flag)
            case Signal():
                if step.release:
                    self._land(task)
                channel = (task.rank, task.lane, step.rank, step.lane, task.block)
                flag = self.sent[channel] = (task.epoch << 20) + step.n
                if step.release and self.plan.is_far(task.rank, step.rank):
                    self.flights.mark(channel, flag)
            case _:
                if not self._move(task, step):
                    return False
        task.at += 1
        if task.at == len(task.steps):
            task.at, task.epoch = 0, task.epoch + 1
        return True

    def _move(self, task: _Task, move: Move) -> bool:
        memory, block, epoch = self.memory, task.block, task.epoch
        width = range(move.stop - move.start)
        if self.plan.is_far(task.rank, move.dsts[0].rank):
            self._put(task, move)
            return True
        for src in move.srcs:
            for i in width if src.packets else ():
                place = memory.place(src, i, block, epoch)
                if memory.announced.get(place, -1) != epoch:
                    return False
        for i in width:
            atom = move.start + i
            parts = []
            for src in move.srcs:
                view = memory.view(src, i, atom, block, epoch)
                self._land(task, functools.partial(_overlaps, view))
                parts.append(view)
            total = combine(self.op, parts, self.dtype)
            for dst in move.dsts:
                value = total
                if move.finish and dst.space is Space.OUTPUT:
                    value = finish(self.final, total, self.plan.num_members, self.dtype)
                target = memory.view(dst, i, atom, block, epoch)
                place = memory.place(dst, i, block, epoch)
                said = epoch if dst.packets else None
                task.stores.append(_Store(place, target, value, said))
        return True

    def _put(self, task: _Task, move: Move) -> None:
        """Send to another host, from memory as it will be when the data leave."""
        (src,), (dst,) = move.srcs, move.dsts
        at = task.block, task.epoch
        lane = (task.rank, task.lane, dst.rank, task.block)
        for i in range(move.stop - move.start):
            source = self.memory.view(src, i, move.start + i, *at)
            self._land(task, functools.partial(_overlaps, source))
            target = self.memory.view(dst, i, move.start + i, *at)
            self.flights.issue(lane, source, target)

    # Stores land.

    def _land_some(self) -> None:
        """Let a random store of a random lane land, now and then."""
        if self.random() < _LANDS:
            self._land_one()

    def _land_one(self) -> bool:
        holding = [task for task in self.tasks if task.stores]
        if not holding or self.random() < _FLIES:
            return self.flights.land_one(self.random) or bool(holding)
        task = holding[int(self.random() * len(holding))]
        first = task.stores[int(self.random() * len(task.stores))]
        self._land(task, lambda s: s is first or _overlaps(first.target, s))
        return True

    def _land(self, task: _Task, which: Callable[[_Store], bool] | None = None) -> None:
        """Let a lane's stores land, all or those asked for, in their order."""
        kept = []
        for store in task.stores:
            if which is not None and not which(store):
                kept.append(store)
                continue
            store.target[:] = store.value
            if store.announces is not None:
                self.memory.announced[store.place] = store.announces
        task.stores = kept

    def _explain(self, going: Sequence[_Task]) -> str:
        lines = [f"{self.plan.name}: nobody can go on:"]
        for task in going[:8]:
            said = spell_step(task.rank, task.steps[task.at])
            lines.append(f"  rank {task.rank} in step {task.at}: {said}")
        return "\n".join(lines)


def _overlaps(view: Array, store: _Store) -> bool:
    return np.may_share_memory(view, store.target)


_FLIES = 0.2
"""How often it is the turn of a put to another host."""
_LANDS = 0.3
"""How often a store lands between two steps: rarely, so that much is outstanding."""
