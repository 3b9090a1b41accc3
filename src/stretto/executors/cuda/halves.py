"""A plan in two halves: a kernel reduces, and copy engines hand the results round.

Copy engines put larger packets on the wire than any kernel, but cannot add. A schedule
such as `pull bulk zero_copy copy:engine+push` asks for both: what a move stores in
peers' outputs is left to copies of this rank's own output, after the kernel.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

from stretto.errors import PlanError, StrettoError
from stretto.plan import Loc, Move, Plan, Signal, Space, Step, Wait
from stretto.verify import verify_plan

__all__ = ["hands_round_on_engine", "in_halves", "why_not_in_halves"]


def hands_round_on_engine(plan: Plan) -> bool:
    """Return whether a phase of a kernel's plan asks for copy engines."""
    schedule = plan.schedule
    return schedule.protocol != "engine" and any(
        schedule.of(phase).protocol == "engine" for phase in schedule.phases
    )


def in_halves(plan: Plan) -> tuple[Plan, Plan]:
    """Return the kernel's plan and the copies that follow it.

    Between them lies the order of the stream, and the kernel's first waits: whoever is
    copied to has entered. The copies end in a barrier of everybody. What a kernel
    would pass on has not been copied to it yet, and its signals say it has: so both are
    proved together, in the order in which they run.
    """
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
    try:
        verify_plan(_one_after_the_other(plan, kernel, copies))
    except StrettoError as e:
        raise PlanError(
            f"plan {plan.name} ({plan.schedule}): copy engines would begin after all "
            f"of its kernel, and then {e}; want an algorithm whose last phase, and no "
            "other, hands results round (two_shot, hierarchical, flat)"
        ) from e
    return (
        replace(plan, ranks=tuple((steps,) for steps in kernel)),
        replace(
            plan,
            ranks=tuple((steps,) for steps in copies),
            schedule=replace(plan.schedule, phases={}, protocol="engine", blocks=1),
        ),
    )


def why_not_in_halves(plan: Plan) -> str:
    """Return why a plan that asks for it cannot be run so, or nothing."""
    if hands_round_on_engine(plan):
        try:
            in_halves(plan)
        except PlanError as e:
            return str(e)
    return ""


def _one_after_the_other(
    plan: Plan, kernel: list[tuple[Step, ...]], copies: list[tuple[Step, ...]]
) -> Plan:
    """Return what runs as one plan: the kernel, its copies, a barrier of everybody."""
    n = plan.num_ranks
    ranks: list[tuple[tuple[Step, ...], ...]] = []
    sent = Counter(
        (rank, step.rank)
        for rank, steps in enumerate(kernel)
        for step in steps
        if isinstance(step, Signal)
    )
    for rank in range(n):
        others = [(rank + i) % n for i in range(1, n)]
        meet: tuple[Step, ...] = (
            *(Signal(q, 0, sent[rank, q] + 1) for q in others),
            *(Wait(q, 0, sent[q, rank] + 1) for q in others),
        )
        ranks.append(((*kernel[rank], *copies[rank], *meet),))
    return replace(plan, ranks=tuple(ranks))


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
