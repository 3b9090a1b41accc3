"""No mutant of a program that computes something else passes its proof.

Mutants of plans are judged by the referee: tests/pure/testing/referee.
"""

import random

import pytest
from tests.checking.cases import programs
from tests.checking.groups import group_programs
from tests.checking.judge import program_is_right
from tests.checking.mutants import program_mutants

from stretto.compiler.verify import verify
from stretto.errors import StrettoError

SAMPLE = 12


def accepts(program):
    try:
        verify(program)
    except StrettoError:
        return False
    return True


@pytest.mark.parametrize(
    ("made", "n", "sample"),
    [*((programs, n, SAMPLE) for n in (2, 3, 4, 6)), (group_programs, 4, SAMPLE // 3)],
)
def test_no_wrong_program_is_accepted(made, n, sample):
    """An accepted mutant computes the collective all the same.

    Among some of the ranks: relays that forget, double or mix up are caught.
    """
    rng = random.Random(n)
    tried = caught = 0
    for label, program in made(n):
        mutants = list(program_mutants(program))
        for what, mutant in rng.sample(mutants, min(sample, len(mutants))):
            tried += 1
            if not accepts(mutant):
                caught += 1
                continue
            assert program_is_right(mutant, seed=tried), f"{label}: {what}"

    assert caught > tried // 2
