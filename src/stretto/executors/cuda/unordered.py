"""Sums that are made where they arrive: the `unordered` mover.

A plan that puts contributions in its owner's staging and reduces them there becomes one
that adds them to the owner's output. The copy unit of an SM adds element by element, in
the element's own type, in whatever order data arrive: half the memory traffic, and sums
that differ from run to run in their last bits. Never chosen, only asked for by name.

    copy output <- input              the owner's own contribution comes first
    signal, wait                      everybody's is there
    put q.output += input   (each q)  `adds` says which moves these are
    signal, wait                      all sums are complete
    put q.output <- output  (each q)  where the plan goes on to hand the sum round

Legend: r rank, q peer.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from stretto.collectives import Operator
from stretto.errors import CallError, PlanError
from stretto.plan import Loc, Move, Plan, Signal, Space, Step, Wait

__all__ = ["adds", "unordered"]

ADDED = ("float16", "bfloat16", "float32", "float64", "int32", "uint32", "uint64")
"""Element types that the copy unit adds."""


def unordered(plan: Plan, dtype: str, op: Operator) -> Plan:
    """Return the plan that adds at the destination, or the plan itself."""
    if plan.schedule.mover != "unordered" or not _stages(plan):
        return plan
    if plan.schedule.memory != "zero_copy":
        raise _unfit(plan)
    if dtype not in ADDED or op not in (Operator.SUM, Operator.AVG):
        raise CallError(
            f"plan {plan.name}: unordered sums of {dtype} by {op.value}; "
            f"want sum or avg of {', '.join(ADDED)}"
        )
    sums = [_sum(plan, r) for r in range(plan.num_ranks)]
    return replace(
        plan,
        stage_units=(0,) * plan.num_ranks,
        ranks=tuple(
            (tuple(_steps(plan, r, sums, op is Operator.AVG)),)
            for r in range(plan.num_ranks)
        ),
    )


def adds(plan: Plan, rank: int, move: Move) -> bool:
    """Return whether a move adds to what it finds."""
    return (
        plan.schedule.mover == "unordered"
        and not move.finish
        and any(d.rank != rank for d in move.dsts)
    )


def _stages(plan: Plan) -> bool:
    return any(plan.stage_units)


def _sum(plan: Plan, rank: int) -> Move:
    """Return the one move in which a rank reduces."""
    found = [
        step
        for step in plan.ranks[rank][0]
        if isinstance(step, Move) and len(step.srcs) > 1
    ]
    own = [d for d in found[0].dsts if d.rank == rank] if found else []
    if (
        len(found) != 1
        or len(plan.ranks[rank]) != 1
        or len(own) != 1
        or any(d.space is not Space.OUTPUT for d in found[0].dsts)
        or not found[0].finish
    ):
        raise _unfit(plan)
    return found[0]


def _contribution(plan: Plan, rank: int, to: int, total: Move) -> Loc:
    """Return where the contribution of a rank to another's sum lies."""
    for loc in total.srcs:
        if rank == to and loc.rank == rank and loc.space is Space.INPUT:
            return loc
    places = {(s.pos, s.rank) for s in total.srcs if s.space is Space.STAGE}
    for step in plan.ranks[rank][0]:
        if not isinstance(step, Move) or rank == to:
            continue
        hits = [d for d in step.dsts if d.rank == to and (d.pos, to) in places]
        same = (step.start, step.stop) == (total.start, total.stop)
        if hits and same and len(step.srcs) == 1 and step.srcs[0].space is Space.INPUT:
            return step.srcs[0]
    raise _unfit(plan)


def _unfit(plan: Plan) -> PlanError:
    return PlanError(
        f"plan {plan.name} ({plan.schedule}) does not put every contribution once and "
        "reduce once; unordered wants reduce_scatter/one_shot or all_reduce/two_shot, "
        "push bulk zero_copy"
    )


def _steps(plan: Plan, rank: int, sums: list[Move], divides: bool) -> Iterator[Step]:
    others = [(rank + i) % plan.num_ranks for i in range(1, plan.num_ranks)]

    def own(q: int) -> Loc:
        return next(d for d in sums[q].dsts if d.rank == q)

    def move(dsts: tuple[Loc, ...], src: Loc, q: int, *, finish: bool) -> Move:
        total = sums[q]
        return Move(dsts, (src,), total.start, total.stop, finish, total.op)

    def meet(n: int) -> Iterator[Step]:
        yield from (Signal(q, 0, n) for q in others)
        yield from (Wait(q, 0, n) for q in others)

    mine = _contribution(plan, rank, rank, sums[rank])
    yield move((own(rank),), mine, rank, finish=False)
    yield from meet(1)
    for q in others:
        there = _contribution(plan, rank, q, sums[q])
        yield move((own(q),), there, q, finish=False)
    yield from meet(2)
    round_ = tuple(d for d in sums[rank].dsts if d.rank != rank)
    if divides:
        round_ = (own(rank), *round_)
    if round_:
        yield move(round_, own(rank), rank, finish=True)
    if any(d.rank != rank for d in round_):
        yield from meet(3)
