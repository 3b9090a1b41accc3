"""The wide matrix, for a night: every mutant of every small plan, none left out."""

import pytest
from tests.checking.cases import SCHEDULES, programs
from tests.checking.plan_mutants import plan_mutants
from tests.checking.referee import judge_plan

from stretto.compiler.lower import lower
from stretto.compiler.plan import Schedule
from stretto.compiler.verify import verify, verify_plan
from stretto.errors import StrettoError

pytestmark = [pytest.mark.slow, pytest.mark.timeout(7_200)]


@pytest.mark.parametrize("in_place", [False, True])
@pytest.mark.parametrize("text", SCHEDULES)
@pytest.mark.parametrize("n", [2, 3])
def test_no_wrong_mutant_is_accepted(n, text, in_place):
    """All edits of all plans of two and three ranks."""
    wrong, accepted, refused = [], 0, 0
    for label, program in programs(n):
        right = verify(program)
        plan = lower(right, Schedule.parse(text), in_place=in_place)
        for what, mutant in plan_mutants(plan):
            try:
                verify_plan(mutant, right)
            except StrettoError:
                refused += 1
                continue
            accepted += 1
            verdict = judge_plan(mutant, program)
            if not verdict.right:
                wrong.append(f"{label}: {what}: {verdict}")

    assert [] == wrong[:3]
    assert accepted
    assert refused
