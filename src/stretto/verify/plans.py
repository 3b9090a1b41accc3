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

from stretto import collectives
from stretto.errors import PlanError
from stretto.ir import Program, Verified, undisturbed
from stretto.plan import Groups, Plan
from stretto.verify.meaning import Meaning, meaning
from stretto.verify.results import Results
from stretto.verify.running import Run
from stretto.verify.shape import check_shape
from stretto.verify.values import Values

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
            want = _results(means.value, values).meaning()
    found = _results(plan, values, groups, in_any_order=in_any_order)
    found.compare(want)
    return Verified(plan)


def _results(
    plan: Plan,
    values: Values,
    groups: Groups | None = None,
    *,
    in_any_order: bool = False,
) -> Results:
    """Return what a plan leaves, when it runs in order and keeps its promise."""
    check_shape(plan)
    run = Run(plan, values)
    if groups is not None:
        run.group(groups, in_any_order=in_any_order)
    run.run()
    results = Results(run)
    results.check_promise()
    return results


def _check_kin(plan: Plan, means: Program | Plan) -> None:
    """Raise unless both are of one collective, among the same ranks."""
    for what in ("collective", "num_ranks", "split", "params"):
        mine, theirs = getattr(plan, what), getattr(means, what)
        if mine != theirs:
            raise PlanError(
                f"{plan.name}: {what}={mine}; {means.name}, which it is to compute, "
                f"has {what}={theirs}"
            )
