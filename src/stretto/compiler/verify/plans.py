"""Prove a plan: promise, order, liveness, closedness, by running it on symbols.

- promise: outputs end with what the collective promises, finished once;
- bits: each is made as the program makes it, from the same values in the same order;
- ordered: conflicting accesses know of each other (`memory` has the rules);
- live: the run ends, so every run ends;
- closed: every lane knows at the end that every other has entered, so that the next
  epochs may use the same staging; and a caller's memory is left alone once it has left;
- far: what goes to another host is a put into staging, and has landed before it is read
  or its source stored over (`landing`);
- in place: with `plan.in_place`, all of this while outputs lie in inputs (`aliasing`).
"""

from __future__ import annotations

import functools
from dataclasses import replace

from stretto.compiler.plan import (
    Batched,
    Copied,
    Groups,
    Halves,
    Plan,
    ProvedPlan,
    hands_round_on_engine,
)
from stretto.compiler.rewrite import (
    as_copies,
    barrier_plan,
    emptied,
    in_batches,
    in_order,
    sizes,
    split,
    with_closing_signals,
)
from stretto.compiler.verify.meaning import Meaning, meaning
from stretto.compiler.verify.results import Results
from stretto.compiler.verify.running import SymbolicRun
from stretto.compiler.verify.shape import check_shape
from stretto.compiler.verify.values import Values
from stretto.errors import PlanError, StrettoError, refuse_other
from stretto.program.ir import Program, Verified, undisturbed


@undisturbed
def verify_plan(
    plan: Plan,
    means: Verified[Program] | Verified[Plan] | None = None,
    *,
    groups: Groups | None = None,
    in_any_order: bool = False,
) -> ProvedPlan:
    """Return the plan as proved, or raise what is wrong with it and where.

    `means` is the program that it runs, or the plan that it was before a rewrite: its
    results are then proved to be those, to the last bit. A plan alone is proved to make
    what ranks have in common in one way.

    `groups` says which steps run at once. A group of moves waits for all its packets,
    then each thread loads all that is read at its elements and stores; `in_any_order`:
    each move runs by itself, before or after the others.
    """
    refuse_other("verify_plan", plan, Plan, "a plan, as lower(verify(program), ...) is")
    values = Values(plan.num_ranks)
    want: Meaning | None = None
    if means is not None:
        _check_kin(plan, means.value)
    if means is not None and plan.kind.reduces:
        if isinstance(means.value, Program):
            want = meaning(means.value, values)
        else:
            want = _results(means.value, values).meaning()
    found = _results(plan, values, groups, in_any_order=in_any_order)
    found.compare(want)
    return Proved(plan)


def _results(
    plan: Plan,
    values: Values,
    groups: Groups | None = None,
    *,
    in_any_order: bool = False,
) -> Results:
    """Return what a plan leaves, when it runs in order and keeps its promise."""
    check_shape(plan)
    run = SymbolicRun(plan, values)
    if groups is not None:
        run.group(groups, in_any_order=in_any_order)
    run.run()
    results = Results(run)
    results.check_promise()
    return results


def left_by(plan: Plan, values: Values) -> Meaning:
    """Return what a plan leaves in every output, and how that was made."""
    return _results(plan, values).meaning()


def _check_kin(plan: Plan, means: Program | Plan) -> None:
    """Raise unless both are of one collective, among the same ranks."""
    for what in ("collective", "num_ranks", "split", "params"):
        mine, theirs = getattr(plan, what), getattr(means, what)
        if mine != theirs:
            raise PlanError(
                f"{plan.name}: {what}={mine}; {means.name}, which it is to compute, "
                f"has {what}={theirs}"
            )


# What executors run of a plan. (A method that kept what it returned would be kept for
# each object: equal plans are proved once.)


class Proved(ProvedPlan):
    """A plan that was proved, as `verify` makes it."""

    __slots__ = ()

    def batched(self) -> Batched:
        """Return the plan as a kernel runs it, proved in that order."""
        return _batched(self)

    def closed(self) -> ProvedPlan:
        """Return a plan each of whose epochs is closed: with a barrier's signals."""
        return _closed(self)

    def copied(self) -> Copied:
        """Return the plan as copy engines run it."""
        return _copied(self)

    def in_halves(self, *, several_tiles: bool = False) -> Halves:
        """Return the plan as a kernel and the copies that follow it."""
        return _in_halves(self, several_tiles)

    def why_not_on_engines(self) -> str:
        """Return why a plan that asks for copy engines has none, or nothing."""
        try:
            if self.value.schedule.protocol == "engine":
                self.copied()
            elif hands_round_on_engine(self.value):
                self.in_halves()
        except PlanError as e:
            return str(e)
        return ""

    def barrier(self) -> Batched:
        """Return the barrier of everybody that stands beside the plan's copies."""
        return verify_plan(
            barrier_plan(self.value.name, self.value.num_ranks)
        ).batched()

    def on_blocks(self, blocks: int) -> ProvedPlan:
        """Return the plan for so many blocks."""
        schedule = replace(self.value.schedule, blocks=blocks)
        return verify_plan(replace(self.value, schedule=schedule), self)


@functools.lru_cache(maxsize=256)
def _batched(proved: ProvedPlan) -> Batched:
    plan = proved.value
    lanes = in_batches(plan)
    proof = verify_plan(in_order(plan, lanes), proved, groups=sizes(lanes))
    return Batched(plan=plan, lanes=lanes, proof=proof)


@functools.lru_cache(maxsize=256)
def _closed(proved: ProvedPlan) -> ProvedPlan:
    plan = with_closing_signals(proved.value)
    if plan is not proved.value:
        proved = verify_plan(plan, proved)
    check_closed(plan)
    return proved


def check_closed(plan: Plan) -> None:
    """Raise unless a plan's own signals close an epoch in which nothing is moved."""
    verify_plan(emptied(plan))


@functools.lru_cache(maxsize=256)
def _copied(proved: ProvedPlan) -> Copied:
    ranks, run, groups = as_copies(proved.value)
    proof = verify_plan(run, proved, groups=groups, in_any_order=True)
    return Copied(plan=proved.value, ranks=ranks, proof=proof)


@functools.lru_cache(maxsize=256)
def _in_halves(proved: ProvedPlan, several_tiles: bool) -> Halves:
    """Prove the kernel, its copies and the barrier as one plan.

    A kernel of several tiles is proved to close each, too: the barrier comes once.
    """
    proved = proved.closed() if several_tiles else proved
    plan = proved.value
    made = split(plan)
    try:
        proof = verify_plan(made.whole, proved, groups=made.groups)
        if several_tiles:
            check_closed(made.ordered)
    except StrettoError as e:
        raise PlanError(
            f"plan {plan.name} ({plan.schedule}): copy engines would begin after all "
            f"of its kernel, and then {e}; want an algorithm whose last phase, and no "
            "other, hands results round (two_shot, hierarchical, flat)"
        ) from e
    return Halves(
        kernel=Batched(plan=made.kernel, lanes=made.batches, proof=proof),
        copies=Copied(plan=made.copies, ranks=made.then, proof=proof),
    )
