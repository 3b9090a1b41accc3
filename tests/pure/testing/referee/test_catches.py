"""The referee catches, by itself, every kind of plan that a proof once let pass."""

import pytest
from tests.checking.cases import SCHEDULES, programs
from tests.checking.referee import Call, Outcome, judge, judge_plan
from tests.checking.referee.scopes import paired
from tests.pure.testing.referee.plans import FORCED, WRONG

from stretto.compiler.lower import lower
from stretto.compiler.plan import Schedule
from stretto.compiler.verify import verify, verify_plan
from stretto.errors import StrettoError


@pytest.mark.parametrize(
    ("kind", "found"),
    [
        ("unequal counts in place", {Outcome.WRONG, Outcome.RACE}),
        ("other cuts in place", {Outcome.WRONG, Outcome.RACE}),
        ("another chunk in staging", {Outcome.UNDEFINED, Outcome.WRONG}),
        ("added backwards", {Outcome.ORDER}),
        ("lanes that run ahead", {Outcome.HANG, Outcome.RACE}),
    ],
)
def test_what_a_proof_let_pass_is_caught(kind, found):
    """Each kind of fault is found in a small scope, and is called what it is."""
    verdict = judge_plan(WRONG[kind], in_place=FORCED.get(kind))

    assert verdict.outcome in found, verdict
    assert verdict.trace


@pytest.mark.parametrize("kind", sorted(WRONG.keys() - FORCED.keys()))
def test_the_proof_refuses_what_the_referee_catches(kind):
    """No such plan is proved."""
    with pytest.raises(StrettoError):
        verify_plan(WRONG[kind])


@pytest.mark.slow
def test_unequal_parts_are_not_run_in_place():
    """A plan in place is proved for parts that lie over one another, and run so."""
    plan = WRONG["unequal counts in place"]

    assert judge_plan(plan, wide=True).right
    assert {0} == paired(plan, (9, 2, 3, 2, 9, 1, 3, 4, 9))
    assert {0, 1, 2} == paired(plan, (9, 2, 3, 2, 9, 1, 3, 1, 9))


def test_equal_counts_are_right_where_unequal_ones_are_not():
    """In place, parts of one size lie exactly over one another."""
    plan = WRONG["unequal counts in place"]

    def verdict(counts, blocks=1, most=99):
        call = Call(plan=plan, counts=counts, most=most, in_place=frozenset(range(3)))
        return judge([call])

    assert verdict((2,) * 9).right
    assert verdict((2,) * 9, most=1).right
    assert not verdict((2, 5, 1, 1, 2, 5, 5, 1, 2), most=2).right


def test_lanes_that_run_ahead_are_right_in_one_tile():
    """They hang in three: staging comes again after two."""
    plan = WRONG["lanes that run ahead"]

    assert judge([Call(plan=plan, counts=(3, 3))]).right
    assert judge([Call(plan=plan, counts=(3, 3))] * 3).right
    assert Outcome.HANG is judge([Call(plan=plan, counts=(3, 3), most=1)]).outcome


@pytest.mark.slow
@pytest.mark.parametrize("n", [2, pytest.param(3, marks=pytest.mark.slow)])
def test_every_plan_of_the_catalogue_is_right(n):
    """Counts unequal and not, one to three tiles, blocks, threads, several calls."""
    for label, program in programs(n):
        for text in SCHEDULES:
            plan = lower(verify(program), Schedule.parse(text))

            verdict = judge_plan(plan, program)
            assert verdict.right, f"{label} {text}: {verdict}"
