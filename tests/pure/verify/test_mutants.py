"""No mutant of a program that computes something else passes its proof.

Mutants of plans are judged by the referee: tests/pure/testing/referee.
"""

import random

import pytest
from tests.checking.cases import programs
from tests.checking.groups import group_programs
from tests.checking.judge import program_is_right
from tests.checking.mutants import program_mutants

from stretto.errors import StrettoError
from stretto.verify import verify

SAMPLE = 12


def accepts(program):
    try:
        verify(program)
    except StrettoError:
        return False
    return True


@pytest.mark.parametrize("n", [2, 3, 4, 6])
def test_no_wrong_program_is_accepted(n):
    """An accepted mutant of a program computes the collective all the same."""
    rng = random.Random(n)
    tried = caught = 0
    for label, program in programs(n):
        mutants = list(program_mutants(program))
        for what, mutant in rng.sample(mutants, min(SAMPLE, len(mutants))):
            tried += 1
            if not accepts(mutant):
                caught += 1
                continue
            assert program_is_right(mutant, seed=tried), f"{label}: {what}"

    assert caught > tried // 2


def test_no_wrong_program_among_some_ranks_is_accepted():
    """Relays that forget, double or mix up are caught."""
    rng = random.Random(4)
    tried = caught = 0
    for label, program in group_programs(4):
        every = list(program_mutants(program))
        for what, mutant in rng.sample(every, min(SAMPLE // 3, len(every))):
            tried += 1
            if not accepts(mutant):
                caught += 1
                continue
            assert program_is_right(mutant, seed=tried), f"{label}: {what}"

    assert caught > tried // 2
