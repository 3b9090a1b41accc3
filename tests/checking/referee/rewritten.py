"""Plans as kernels and copy engines run them: what rewrites make, put into calls.

What a rewrite hands to an executor is its batches. They are put together here as they
are run, and not as the rewrite put them together for its proof:

    batched     a kernel of one tile, and (of a plan that is `closed`) of several
    in_halves   a kernel, then copies, each by an engine of its own, then a barrier;
                and (of a plan that is `closed`) a kernel of several tiles before them
    copied      copies between barriers

Copies of a batch run in any order: each is an agent, and they meet before and after.
A copy is whole, in however many tiles a kernel runs before it; what has copies is
judged in one block, as engines wait for all of them.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass, replace

from tests.checking.plan_mutants import plan_edits
from tests.checking.referee.calls import Call
from tests.checking.referee.judge import judge
from tests.checking.referee.scopes import paired, touches_peers, unequal
from tests.checking.referee.verdict import Outcome, Verdict

from stretto.compiler.plan import (
    Groups,
    Plan,
    ProvedPlan,
    Signal,
    Step,
    Wait,
    hands_round_on_engine,
)
from stretto.compiler.verify import check_closed, verify_plan
from stretto.program.ir import Program

__all__ = ["ON_ENGINE", "Rewritten", "judge_rewritten", "mutants_of", "rewrites_of"]

ON_ENGINE = (
    "push engine zero_copy",
    "pull engine zero_copy",
    "pull bulk zero_copy copy:engine+push",
)
"""Schedules that ask for copy engines, in all or at the end."""

_Batches = list[list[Step]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Rewritten:
    """A plan in the order in which it runs, and what runs at once."""

    how: str
    plan: Plan
    groups: Groups
    copies: tuple[int, ...] | None = None
    """By rank, the first group that copy engines run; None: there are none."""
    tiles: bool = False
    """Whether it runs in several tiles too."""

    def prove(self, means: ProvedPlan) -> ProvedPlan:
        """Prove it as the rewrite has to, or raise `PlanError`."""
        every = self.copies is not None and not any(self.copies)
        if self.copies is not None and self.tiles:
            check_closed(self._kernel(self.copies))
        return verify_plan(self.plan, means, groups=self.groups, in_any_order=every)

    def _kernel(self, copies: tuple[int, ...]) -> Plan:
        """Return what runs before the copies."""
        ranks = tuple(
            (steps[: sum(sizes[:first])],)
            for (steps,), (sizes,), first in zip(
                self.plan.ranks, self.groups, copies, strict=True
            )
        )
        return replace(self.plan, ranks=ranks)


def rewrites_of(proved: ProvedPlan) -> Iterator[Rewritten]:
    """Yield what executors make of a plan; `PlanError` when a rewrite refuses it."""
    plan = proved.value
    if plan.schedule.protocol == "engine":
        yield _of_engines(proved)
    elif hands_round_on_engine(plan):
        yield _of_halves("in_halves", proved)
        several = _of_halves("closed, in_halves", proved, several_tiles=True)
        yield replace(several, tiles=True)
    else:
        yield _of_kernel("batched", proved)
        yield replace(_of_kernel("closed", proved.closed()), tiles=True)


def _of_kernel(how: str, proved: ProvedPlan) -> Rewritten:
    made = proved.batched()
    ranks = [
        [_steps(made.batches(rank, lane)) for lane in range(len(lanes))]
        for rank, lanes in enumerate(proved.value.ranks)
    ]
    return Rewritten(how=how, plan=_in_order(proved.value, ranks), groups=_many(ranks))


def _of_halves(
    how: str, proved: ProvedPlan, *, several_tiles: bool = False
) -> Rewritten:
    halves = proved.in_halves(several_tiles=several_tiles)
    n = proved.value.num_ranks
    said = {
        (rank, step.rank): step.n
        for rank, (steps,) in enumerate(halves.kernel.plan.ranks)
        for step in steps
        if isinstance(step, Signal)
    }
    ranks, firsts = [], []
    for rank in range(n):
        kernel = _steps(halves.kernel.batches(rank))
        copies = _steps(halves.copies.ranks[rank])
        firsts.append(len(kernel))
        ranks.append([[*kernel, *copies, *_barrier(rank, n, said)]])
    return Rewritten(
        how=how,
        plan=_in_order(proved.value, ranks),
        groups=_many(ranks),
        copies=tuple(firsts),
    )


def _of_engines(proved: ProvedPlan) -> Rewritten:
    made = proved.copied()
    n = proved.value.num_ranks
    ranks = []
    for rank in range(n):
        entered = {(a, b): 1 for a in range(n) for b in range(n)}
        copies = _steps(made.ranks[rank])
        ranks.append([[*_barrier(rank, n, {}), *copies, *_barrier(rank, n, entered)]])
    return Rewritten(
        how="copied",
        plan=_in_order(proved.value, ranks),
        groups=_many(ranks),
        copies=(0,) * n,
    )


def _steps(batches: tuple[list[tuple[int, Step]], ...]) -> _Batches:
    return [[step for _, step in batch] for batch in batches]


def _barrier(rank: int, n: int, said: dict[tuple[int, int], int]) -> _Batches:
    """Return how a rank meets all others, whatever they have signalled before."""
    others = [q for q in range(n) if q != rank]
    tells: list[Step] = [Signal(q, 0, said.get((rank, q), 0) + 1) for q in others]
    hears: list[Step] = [Wait(q, 0, said.get((q, rank), 0) + 1) for q in others]
    return [tells, hears] if others else []


def _in_order(plan: Plan, ranks: list[list[_Batches]]) -> Plan:
    return replace(
        plan,
        schedule=replace(plan.schedule, blocks=1),
        ranks=tuple(
            tuple(tuple(s for batch in lane for s in batch) for lane in lanes)
            for lanes in ranks
        ),
    )


def _many(ranks: list[list[_Batches]]) -> Groups:
    return tuple(tuple(tuple(map(len, lane)) for lane in lanes) for lanes in ranks)


def judge_rewritten(one: Rewritten, program: Program) -> Verdict:
    """Return the first verdict that is not right, of calls as executors make them."""
    plan, verdict = one.plan, Verdict(outcome=Outcome.RIGHT)
    counts = [
        unequal(plan, (3,)),
        unequal(plan, (2, 3, 1)),
        unequal(plan, (3, 0, 1, 2)),
        unequal(plan, (2, 0, 3, 1), mirrored=True),
        unequal(plan, (1,), 1),
    ]
    for each in dict.fromkeys(counts):
        here = paired(plan, each)
        if plan.in_place and touches_peers(plan) and len(here) < plan.num_ranks:
            continue  # such calls are staged
        for most, times in ((99, 3), (1, 2)) if one.tiles else ((99, 3),):
            call = Call(
                plan=plan,
                counts=each,
                most=most,
                in_place=here,
                program=program,
                groups=one.groups,
                copies=one.copies,
            )
            verdict = judge([call] * times, threads=True, silent=True, roll_call=True)
            if not verdict.right:
                return verdict
    return verdict


def mutants_of(
    one: Rewritten, rng: random.Random, many: int
) -> Iterator[tuple[str, Rewritten]]:
    """Yield mutants of a rewritten plan: of its steps, and of what runs at once."""
    edits = list(plan_edits(one.plan))
    for _ in range(many):
        if rng.random() < 0.3:
            other = _regrouped(one, rng)
            if other is not None:
                yield other
            continue
        what, make = rng.choice(edits)
        mutant = replace(one, plan=make())
        if _fits(mutant):
            yield what, mutant


def _fits(one: Rewritten) -> bool:
    """Return whether groups are the plan's still, each of steps of one kind."""
    if [len(lanes) for lanes in one.plan.ranks] != [len(each) for each in one.groups]:
        return False
    for lanes, each in zip(one.plan.ranks, one.groups, strict=True):
        for steps, sizes in zip(lanes, each, strict=True):
            if sum(sizes) != len(steps):
                return False
            at = 0
            for size in sizes:
                if len({type(step) for step in steps[at : at + size]}) != 1:
                    return False
                at += size
    return True


def _regrouped(one: Rewritten, rng: random.Random) -> tuple[str, Rewritten] | None:
    """Return the plan with two groups of a lane in one, or changed in order; or None.

    Copies are told from the kernel by their groups, so groups of a kernel that has
    copies after it only change places.
    """
    rank = rng.randrange(one.plan.num_ranks)
    if not one.groups[rank]:
        return None
    lane = rng.randrange(len(one.groups[rank]))
    sizes, steps = one.groups[rank][lane], one.plan.ranks[rank][lane]
    if len(sizes) < 2:
        return None
    at = rng.randrange(len(sizes) - 1)
    first = sum(sizes[:at])
    middle, last = first + sizes[at], first + sizes[at] + sizes[at + 1]
    here = one.copies[rank] if one.copies is not None else 0
    if at + 1 == here:
        return None  # the stream puts copies after the kernel
    if rng.random() < 0.5 and at >= here:
        what = "two groups in one"
        order = steps
        new = (*sizes[:at], sizes[at] + sizes[at + 1], *sizes[at + 2 :])
    else:
        what = "two groups in the other order"
        order = (*steps[:first], *steps[middle:last], *steps[first:middle])
        order = (*order, *steps[last:])
        new = (*sizes[:at], sizes[at + 1], sizes[at], *sizes[at + 2 :])
    lanes, groups = list(one.plan.ranks[rank]), list(one.groups[rank])
    lanes[lane], groups[lane] = order, new
    mutant = replace(
        one,
        plan=replace(one.plan, ranks=_with(one.plan.ranks, rank, tuple(lanes))),
        groups=_with(one.groups, rank, tuple(groups)),
    )
    return (what, mutant) if _fits(mutant) else None


def _with(ranks: tuple, rank: int, new: tuple) -> tuple:  # type: ignore[type-arg]
    return (*ranks[:rank], new, *ranks[rank + 1 :])
