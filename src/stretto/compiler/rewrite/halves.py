"""Rewrite: a plan in two halves. A kernel reduces, copy engines hand results round.

Copy engines put larger packets on the wire than any kernel, but cannot add. A schedule
such as `pull bulk zero_copy copy:engine+push` asks for both: what a move stores in
peers' outputs is left to copies of this rank's own output, after the kernel.

    rank:  the kernel, in batches | its copies, in any order | a barrier of everybody

Between them lies the order of the stream. What a kernel would pass on has not been
copied to it yet, and its signals say it has: so all of it is proved as one plan.
A kernel may run in several tiles; copies and the barrier come once, after the last.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import NamedTuple

from stretto.compiler.plan import (
    Batch,
    Groups,
    Lanes,
    Loc,
    Move,
    Plan,
    Signal,
    Space,
    Step,
    Wait,
)
from stretto.compiler.rewrite.batching import in_batches, in_order, sizes
from stretto.compiler.rewrite.copying import independent
from stretto.errors import PlanError


class Split(NamedTuple):
    """What a plan in halves is made of, which nobody has proved yet."""

    kernel: Plan
    batches: Lanes
    ordered: Plan
    """The kernel, its steps in the order of their batches."""
    copies: Plan
    then: tuple[tuple[Batch, ...], ...]
    """The copies, as every rank enqueues them."""
    whole: Plan
    """The kernel, its copies, and a barrier of everybody, as one plan."""
    groups: Groups


def split(plan: Plan) -> Split:
    """Return the kernel of a plan, and the copies that follow it."""
    kernel: list[tuple[Step, ...]] = []
    copies: list[tuple[Step, ...]] = []
    for rank, lanes in enumerate(plan.ranks):
        if len(lanes) != 1:
            raise PlanError(f"plan {plan.name}: {len(lanes)} lanes; halves have one")
        steps = [_split(rank, step) for step in lanes[0]]
        kernel.append(tuple(kept for kept, _ in steps))
        copies.append(tuple(copy for _, copy in steps if copy is not None))
    if not any(copies):
        raise PlanError(
            f"plan {plan.name} ({plan.schedule}): nothing is stored in a peer's output "
            "that is in this rank's too; want a zero_copy plan that pushes its results"
        )
    first = replace(plan, ranks=tuple((steps,) for steps in kernel))
    batches = in_batches(first)
    then = tuple(tuple(independent(list(enumerate(steps)))) for steps in copies)
    ordered = in_order(first, batches)
    whole, groups = _one_after_the_other(ordered, sizes(batches), then)
    schedule = replace(plan.schedule, phases={}, protocol="engine", blocks=1)
    second = replace(plan, ranks=tuple((steps,) for steps in copies), schedule=schedule)
    return Split(first, batches, ordered, second, then, whole, groups)


def _one_after_the_other(
    kernel: Plan, batches: Groups, copies: tuple[tuple[Batch, ...], ...]
) -> tuple[Plan, Groups]:
    """Return what runs as one plan: the kernel, its copies, a barrier of everybody."""
    n = kernel.num_ranks
    ranks: list[tuple[tuple[Step, ...], ...]] = []
    groups: list[tuple[tuple[int, ...], ...]] = []
    last = Counter[tuple[int, int]]()
    for rank, (steps,) in enumerate(kernel.ranks):
        for step in steps:
            if isinstance(step, Signal):
                last[rank, step.rank] = max(last[rank, step.rank], step.n)
    for rank, (steps,) in enumerate(kernel.ranks):
        others = [(rank + i) % n for i in range(1, n)]
        meet: tuple[Step, ...] = (
            *(Signal(q, 0, last[rank, q] + 1) for q in others),
            *(Wait(q, 0, last[q, rank] + 1) for q in others),
        )
        moves = [move for batch in copies[rank] for _, move in batch]
        ranks.append(((*steps, *moves, *meet),))
        at_once = (*map(len, copies[rank]), *(1 for _ in meet))
        groups.append(((*batches[rank][0], *at_once),))
    return replace(kernel, ranks=tuple(ranks)), tuple(groups)


def _split(rank: int, step: Step) -> tuple[Step, Move | None]:
    """Return what the kernel keeps of a step, and the copies it leaves."""
    if not isinstance(step, Move):
        return step, None
    mine = [d for d in step.dsts if d.rank == rank and d.space is Space.OUTPUT]
    far = tuple(d for d in step.dsts if d.rank != rank and d.space is Space.OUTPUT)
    if not mine or not far:
        return step, None
    source: tuple[Loc, ...] = (mine[0],)
    kept = tuple(d for d in step.dsts if d not in far)
    return step._replace(dsts=kept), step._replace(dsts=far, srcs=source, finish=False)
