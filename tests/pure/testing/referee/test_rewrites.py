"""What a GPU's kernel makes of a plan is judged like a plan: closed, and in batches."""

from dataclasses import replace
from itertools import islice

import pytest
from tests.checking.cases import SCHEDULES, programs
from tests.checking.referee import Call, Outcome, judge
from tests.checking.referee.scopes import paired, unequal

from stretto.compiler.lower import lower
from stretto.compiler.plan import Schedule
from stretto.compiler.verify import verify, verify_plan
from stretto.errors import StrettoError


def in_batches(proved):
    """Return a plan in the order of a kernel's batches, and how many steps each has."""
    plan, made = proved.value, proved.batched()
    lanes = [
        [made.batches(rank, lane) for lane in range(len(lanes))]
        for rank, lanes in enumerate(plan.ranks)
    ]
    steps = tuple(
        tuple(tuple(s for batch in one for _, s in batch) for one in each)
        for each in lanes
    )
    groups = tuple(tuple(tuple(map(len, one)) for one in each) for each in lanes)
    return replace(plan, ranks=steps), groups


def plans(n):
    """Yield every plan of the catalogue that the proof accepts, proved."""
    for label, program in programs(n):
        for text in SCHEDULES:
            for in_place in (False, True):
                right = verify(program)
                plan = lower(right, Schedule.parse(text), in_place=in_place)
                try:
                    yield (
                        f"{label} {text} {in_place}",
                        program,
                        verify_plan(plan, right),
                    )
                except StrettoError:
                    assert in_place


@pytest.mark.slow
def test_plans_are_right_as_kernels_run_them():
    """Moves side by side, threads on their own, empty slices that announce nothing."""
    together = 0
    for label, program, proved in islice(plans(3), 0, None, 3):
        counts = unequal(proved.value, (3, 0, 1), mirrored=True)
        for most, times, by in ((99, 3, proved), (1, 1, proved.closed())):
            plan, groups = in_batches(by)
            together += any(k > 1 for each in groups for one in each for k in one)
            call = Call(
                plan=plan,
                counts=counts,
                most=most,
                in_place=paired(plan, counts),
                program=program,
                groups=groups,
            )
            verdict = judge([call] * times, threads=True, silent=True, roll_call=True)
            assert verdict.right, f"{label}: {verdict}"

    assert together > 20


def test_moves_that_need_one_another_are_not_side_by_side():
    """All of a group is loaded before any of it is stored."""
    _, program = next(iter(programs(2, "all_gather/one_shot")))
    plan = lower(verify(program), Schedule.parse("push packets staged"))
    first, *rest = plan.ranks[0][0]
    stored = first._replace(dsts=first.dsts[:1])
    passed = first._replace(dsts=first.dsts[1:], srcs=stored.dsts)
    changed = replace(plan, ranks=(((stored, passed, *rest),), *plan.ranks[1:]))
    one_by_one = (((1, 1, 1),), ((1, 1),))
    at_once = (((2, 1),), ((1, 1),))

    assert first.dsts[0].rank == 0
    for groups, found in ((one_by_one, Outcome.RIGHT), (at_once, Outcome.UNDEFINED)):
        call = Call(plan=changed, counts=(2, 3), groups=groups)
        assert found is judge([call], threads=True).outcome
    verify_plan(changed, groups=one_by_one)
    with pytest.raises(StrettoError):
        verify_plan(changed, groups=at_once)


def test_launches_of_one_tile_lean_on_the_roll_call():
    """Where nothing is announced, only it tells that everybody has left."""
    _, program = next(iter(programs(3, "all_to_all/one_shot")))
    plan = lower(verify(program), Schedule.parse("push packets staged"))
    call = Call(plan=plan, counts=(0, 3, 0, 0, 0, 0, 0, 0, 0))

    assert judge([call] * 4, threads=True, silent=True, roll_call=True).right
    alone = judge([call] * 4, threads=True, silent=True)
    assert alone.outcome in (Outcome.HANG, Outcome.OVERWRITTEN, Outcome.RACE)
