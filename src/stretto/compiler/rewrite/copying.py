"""Rewrite: a plan as copy engines run it, on streams and without a thread block.

Every move reads an input, between everybody's entry and everybody's exit: the copies
need no signals of their own. A barrier, the copies, a barrier. What would be passed on
is refused: streams could wait for each other's copies, but graphs run that slowly (60
to 190 us a call, on four H200), and no measured run chose it.

They are proved as they run: moves that do not touch what another of them wrote are
enqueued together, and may run in any order.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TypeAlias

from stretto.compiler.plan import (
    Batch,
    Groups,
    Move,
    Plan,
    Schedule,
    Signal,
    Space,
    Step,
    Wait,
)
from stretto.errors import PlanError

CopiedRanks: TypeAlias = tuple[tuple[Batch, ...], ...]
"""What every rank enqueues: batches of moves, in order."""


def as_copies(plan: Plan) -> tuple[CopiedRanks, Plan, Groups]:
    """Return what every rank enqueues, and all that runs as a plan, with its groups."""
    if why := _why_not(plan):
        raise PlanError(
            f"plan {plan.name} ({plan.schedule}) {why}; copy engines copy once, and "
            "between registered arrays: want a zero_copy plan without reductions, "
            "whose ranks hand nothing on (one_shot, flat)"
        )
    ranks = tuple(
        tuple(independent([s for s in enumerate(lane) if isinstance(s[1], Move)]))
        for (lane,) in plan.ranks
    )
    run: list[tuple[tuple[Step, ...], ...]] = []
    groups: list[tuple[tuple[int, ...], ...]] = []
    for rank, batches in enumerate(ranks):
        before, after = (_meet(rank, plan.num_ranks, n) for n in (1, 2))
        copies = [step for batch in batches for _, step in batch]
        ones = [1] * len(before)
        run.append(((*before, *copies, *after),))
        groups.append(((*ones, *map(len, batches), *ones),))
    return ranks, replace(plan, ranks=tuple(run)), tuple(groups)


def _why_not(plan: Plan) -> str:
    """Return what copy engines cannot do of a plan, or nothing."""
    if any(len(lanes) != 1 for lanes in plan.ranks):
        return "has several lanes"
    moves = [step for _, _, _, step in plan.steps() if isinstance(step, Move)]
    spaces = {loc.space for move in moves for loc in (*move.srcs, *move.dsts)}
    if any(len(move.srcs) > 1 for move in moves):
        return "reduces"
    if Space.STAGE in spaces:
        return "stages"
    passes_on = any(src.space is not Space.INPUT for m in moves for src in m.srcs)
    return "passes on what has come" * passes_on


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
