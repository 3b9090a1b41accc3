"""What a GPU's kernel makes of a plan is judged like a plan: closed, and in batches."""

from dataclasses import replace

import pytest

from stretto.errors import StrettoError
from stretto.lower import batched, closed, lower
from stretto.plan import Move, Schedule
from stretto.testing import SCHEDULES, programs
from stretto.testing.referee import Call, Outcome, judge
from stretto.testing.referee.scopes import paired, unequal
from stretto.verify import verify, verify_plan


def in_batches(proved, *, backwards):
    """Return a plan with its steps in the order of batches, moves of one turned round.

    Side by side, moves have no order: the first of them may be the last.
    """
    plan, made = proved.value, batched(proved)

    def steps(rank, lane):
        for batch in made.batches(rank, lane):
            moves = isinstance(batch[0][1], Move)
            for _, step in reversed(batch) if moves and backwards else batch:
                yield step

    ranks = tuple(
        tuple(tuple(steps(rank, lane)) for lane in range(len(lanes)))
        for rank, lanes in enumerate(plan.ranks)
    )
    return replace(plan, ranks=ranks)


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


@pytest.mark.parametrize("backwards", [False, True])
def test_plans_are_right_as_kernels_run_them(backwards):
    """Threads on their own, empty slices that announce nothing, and the roll call."""
    for label, program, proved in plans(3):
        plan = proved.value
        counts = unequal(plan, (3, 0, 1), mirrored=True)
        for most, times, by in ((99, 3, proved), (1, 1, closed(proved))):
            call = Call(
                plan=in_batches(by, backwards=backwards),
                counts=counts,
                most=most,
                in_place=paired(plan, counts),
                program=program,
            )
            verdict = judge([call] * times, threads=True, silent=True, roll_call=True)
            assert verdict.right, f"{label}: {verdict}"


def test_launches_of_one_tile_lean_on_the_roll_call():
    """Where nothing is announced, only it tells that everybody has left."""
    _, program = next(iter(programs(3, "all_to_all/one_shot")))
    plan = lower(verify(program), Schedule.parse("push packets staged"))
    call = Call(plan=plan, counts=(0, 3, 0, 0, 0, 0, 0, 0, 0))

    assert judge([call] * 4, threads=True, silent=True, roll_call=True).right
    alone = judge([call] * 4, threads=True, silent=True)
    assert alone.outcome in (Outcome.HANG, Outcome.OVERWRITTEN, Outcome.RACE)
