"""Judge calls of plans: lay them out, run them, say what was found."""

from __future__ import annotations

from collections.abc import Sequence

from tests.checking.referee.calls import Call, check_program
from tests.checking.referee.machine import Machine
from tests.checking.referee.orders import run_ordered
from tests.checking.referee.scopes import scopes, unequal
from tests.checking.referee.verdict import Fault, Outcome, Verdict

from stretto.compiler.plan import Plan
from stretto.program.ir import Program

__all__ = ["judge", "judge_plan", "program_verdict"]


def judge(
    calls: Sequence[Call],
    *,
    threads: bool = False,
    weak: bool = True,
    silent: bool = False,
    roll_call: bool = False,
) -> Verdict:
    """Return what some run of these calls, one after the other, can come to."""
    scope = "; then ".join(map(str, calls)) + (" by threads" if threads else "")
    try:
        machine = Machine(calls, threads=threads, silent=silent, roll_call=roll_call)
        run_ordered(machine, weak=weak)
    except Fault as e:
        return Verdict(outcome=e.outcome, text=e.text, trace=e.trace, scope=scope)
    return Verdict(outcome=Outcome.RIGHT, scope=scope)


def program_verdict(program: Program) -> Verdict:
    """Return whether a program, read line by line, computes its collective.

    Judged by elements, for several counts: every output has what it should, once each.
    """
    for pattern in ((3,), (2, 3, 1), (0, 1, 3)):
        for extra in (0, 1):
            counts = unequal(program, pattern, extra)
            try:
                check_program(program, counts)
            except Fault as e:
                scope = f"counts {','.join(map(str, counts))}"
                return Verdict(outcome=e.outcome, text=e.text, scope=scope)
    return Verdict(outcome=Outcome.RIGHT)


def judge_plan(
    plan: Plan,
    program: Program | None = None,
    *,
    in_place: frozenset[int] | None = None,
    wide: bool = False,
) -> Verdict:
    """Return the first verdict over a plan's scopes that is not `right`, or `right`.

    Without the program the order of sums is judged by what ranks have among themselves.
    """
    for scope in scopes(plan, program, in_place=in_place, wide=wide):
        verdict = judge(scope.calls, threads=scope.threads)
        if not verdict.right:
            return verdict
    return Verdict(outcome=Outcome.RIGHT)
