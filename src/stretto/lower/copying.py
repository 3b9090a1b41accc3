"""Rewrite: a plan as copy engines run it, on streams and without a thread block.

Most plans copy once: every move reads an input, between everybody's entry and
everybody's exit. They need no signals of their own: a barrier, the copies, a barrier.

The others keep their signals, but a stream waits for each value by a flag of its own,
which only its wait takes down. Signals that no wait asks for are left out, and waits
that say less than those before them.

Both are proved as they run: moves that do not touch what another of them wrote are
enqueued together, and may run in any order.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import groupby

from stretto.ir import Verified
from stretto.lower.batching import Batch
from stretto.plan import Move, Plan, Schedule, Signal, Space, Step, Wait
from stretto.verify import verify_plan

__all__ = ["Copied", "barrier_plan", "copied", "independent"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Copied:
    """A plan of one lane a rank, as copy engines run it."""

    plan: Plan
    """What is run; faults name its steps."""
    ranks: tuple[tuple[Batch, ...], ...]
    """What every rank enqueues: batches of moves, of signals, of waits, in order."""
    once: bool
    """Whether barriers of everybody stand before and after, and no signals between."""
    proof: Verified[Plan]


@functools.lru_cache(maxsize=256)
def copied(proved: Verified[Plan]) -> Copied:
    """Return a proved plan as copy engines run it."""
    plan = proved.value
    once = _copies_once(plan)
    steps = [
        [s for s in enumerate(plan.ranks[rank][0]) if isinstance(s[1], Move)]
        if once
        else _that_meet(plan, rank)
        for rank in range(plan.num_ranks)
    ]
    ranks = tuple(tuple(_batches(each)) for each in steps)
    run: list[tuple[tuple[Step, ...], ...]] = []
    groups: list[tuple[tuple[int, ...], ...]] = []
    for rank, batches in enumerate(ranks):
        mine = [step for batch in batches for _, step in batch]
        sizes = [len(batch) for batch in batches]
        if once:
            before, after = (_meet(rank, plan.num_ranks, n) for n in (1, 2))
            ones = [1] * len(before)
            mine, sizes = [*before, *mine, *after], [*ones, *sizes, *ones]
        run.append((tuple(mine),))
        groups.append((tuple(sizes),))
    proof = verify_plan(
        replace(plan, ranks=tuple(run)),
        proved,
        groups=tuple(groups),
        in_any_order=True,
    )
    return Copied(plan=plan, ranks=ranks, once=once, proof=proof)


def barrier_plan(name: str, num_ranks: int) -> Plan:
    """Return the plan in which everybody waits for everybody."""
    nothing = ((),) * num_ranks
    return Plan(
        name=name,
        collective="barrier",
        num_ranks=num_ranks,
        schedule=Schedule(threads=32),
        inputs=nothing,
        outputs=nothing,
        stage_units=(0,) * num_ranks,
        ranks=tuple((_meet(rank, num_ranks, 1),) for rank in range(num_ranks)),
    )


def _meet(rank: int, num_ranks: int, n: int) -> tuple[Step, ...]:
    others = [(rank + i) % num_ranks for i in range(1, num_ranks)]
    return (*(Signal(q, 0, n) for q in others), *(Wait(q, 0, n) for q in others))


def _copies_once(plan: Plan) -> bool:
    """Return whether every move reads an input: nothing is passed on.

    Then its copies wait for everybody's entry alone, and in any order.
    """
    return all(
        src.space is Space.INPUT
        for _, _, _, step in plan.steps()
        if isinstance(step, Move)
        for src in step.srcs
    )


def _that_meet(plan: Plan, rank: int) -> Batch:
    """Return a rank's steps, with their places, but for signals that meet no wait."""
    waits = {
        (step.rank, owner, step.n): (owner, index)
        for owner, lanes in enumerate(plan.ranks)
        for index, step in _waits(lanes[0])
    }
    mine = {index for owner, index in waits.values() if owner == rank}
    return [
        (index, step)
        for index, step in enumerate(plan.ranks[rank][0])
        if isinstance(step, Move)
        or (isinstance(step, Signal) and (rank, step.rank, step.n) in waits)
        or (isinstance(step, Wait) and index in mine)
    ]


def _waits(steps: Sequence[Step]) -> Iterator[tuple[int, Wait]]:
    """Yield the waits that say more than those before them."""
    latest: dict[int, int] = {}
    for index, step in enumerate(steps):
        if isinstance(step, Wait) and step.n > latest.get(step.rank, 0):
            latest[step.rank] = step.n
            yield index, step


def _batches(steps: Batch) -> Iterator[Batch]:
    """Yield what is enqueued together: steps of one kind, moves where they may be."""
    for kind, run in groupby(steps, key=lambda s: type(s[1])):
        if kind is Move:
            yield from independent(list(run))
        else:
            yield list(run)


def independent(moves: Batch) -> list[Batch]:
    """Return runs of moves none of which touches what another of its run touches."""
    runs: list[Batch] = []
    written: set[tuple[int, Space, int]] = set()
    read: set[tuple[int, Space, int]] = set()
    for index, move in moves:
        assert isinstance(move, Move), "only moves are asked about"
        width = range(move.stop - move.start)
        reads = {(s.rank, s.space, s.pos + i) for s in move.srcs for i in width}
        writes = {(d.rank, d.space, d.pos + i) for d in move.dsts for i in width}
        if not runs or written & (reads | writes) or read & writes:
            runs.append([])
            written, read = set(), set()
        runs[-1].append((index, move))
        written |= writes
        read |= reads
    return runs
