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

import functools
from collections import Counter
from dataclasses import dataclass, replace

from stretto.errors import PlanError, StrettoError
from stretto.ir import Verified
from stretto.lower.batching import Batch, Batched, in_batches, in_order, sizes
from stretto.lower.closing import check_closed, closed
from stretto.lower.copying import Copied, independent
from stretto.plan import Groups, Loc, Move, Plan, Signal, Space, Step, Wait
from stretto.verify import verify_plan

__all__ = ["Halves", "hands_round_on_engine", "in_halves", "why_not_in_halves"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Halves:
    """A kernel, and the copies after it; a barrier of everybody ends the call."""

    kernel: Batched
    copies: Copied


def hands_round_on_engine(plan: Plan) -> bool:
    """Return whether a phase of a kernel's plan asks for copy engines."""
    schedule = plan.schedule
    return schedule.protocol != "engine" and any(
        schedule.of(phase).protocol == "engine" for phase in schedule.phases
    )


@functools.lru_cache(maxsize=256)
def in_halves(proved: Verified[Plan], *, several_tiles: bool = False) -> Halves:
    """Return a proved plan as a kernel and the copies that follow it.

    A kernel of several tiles runs again and again before the barrier, which then closes
    the last of its epochs only: it is proved to close each by signals of its own.
    """
    proved = closed(proved) if several_tiles else proved
    plan = proved.value
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
    try:
        proof = verify_plan(whole, proved, groups=groups)
        if several_tiles:
            check_closed(ordered)
    except StrettoError as e:
        raise PlanError(
            f"plan {plan.name} ({plan.schedule}): copy engines would begin after all "
            f"of its kernel, and then {e}; want an algorithm whose last phase, and no "
            "other, hands results round (two_shot, hierarchical, flat)"
        ) from e
    schedule = replace(plan.schedule, phases={}, protocol="engine", blocks=1)
    return Halves(
        kernel=Batched(plan=first, lanes=batches, proof=proof),
        copies=Copied(
            plan=replace(
                plan, ranks=tuple((steps,) for steps in copies), schedule=schedule
            ),
            ranks=then,
            once=True,
            proof=proof,
        ),
    )


def why_not_in_halves(plan: Verified[Plan]) -> str:
    """Return why a plan that asks for it cannot be run so, or nothing."""
    if hands_round_on_engine(plan.value):
        try:
            in_halves(plan)
        except PlanError as e:
            return str(e)
    return ""


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
