"""What the referee wants is what oracles compute, said in another way."""

import random

import numpy as np
import pytest
from tests.checking.cases import programs
from tests.checking.referee import Outcome, program_verdict
from tests.checking.referee.draw import draw_program
from tests.checking.referee.wanted import buffers

from stretto.program import collectives
from stretto.program.collectives import Operator, Shape
from stretto.program.ir import freeze, parse_program

N = 3


def shapes(name):
    """Yield parameters that make sense for a collective of three ranks."""
    if name == "permute":
        yield {"pairs": ((0, 1), (2, 0))}
        return
    rooted = collectives.get(name).rooted
    yield {"root": 2} if rooted else {}
    yield {"members": (0, 2), **({"root": 2} if rooted else {})}


@pytest.mark.parametrize("name", collectives.names())
def test_the_wanted_elements_are_those_of_the_oracle(name):
    """Sums of powers tell which elements of whom are in an output element."""
    kind, rng = collectives.get(name), random.Random(name)
    for params in shapes(name):
        shape = Shape(num_ranks=N, params=freeze(params))
        for _ in range(5):
            counts = [rng.randrange(4) for _ in range(kind.num_parts(shape))]
            have = buffers(name, N, params, counts)
            inputs = [
                np.array([1 << (10 * rank + i) for i in range(have[rank].inputs)], int)
                for rank in range(N)
            ]
            made = kind.oracle(shape, inputs, Operator.SUM, np.asarray(counts, int))

            for rank in range(N):
                sums = [
                    sum(1 << (10 * q + i) for q, i in parts)
                    for parts in have[rank].wanted
                ]
                assert sums == made[rank].tolist()


def test_every_program_of_the_catalogue_computes_its_collective():
    """Read line by line, by elements, with short and empty chunks."""
    for label, program in programs(3):
        assert program_verdict(program).right, label


def test_drawn_programs_compute_their_collective():
    """They are right by how they are made."""
    for seed in range(60):
        rng = random.Random(seed)
        program = draw_program(rng, rng.randint(1, 4))

        verdict = program_verdict(program)
        assert verdict.right, f"seed {seed}: {verdict}\n{program}"


def test_a_wrong_program_is_called_what_it_is():
    """One that forgets a contribution, and one that writes too little."""
    head = "program p collective=all_reduce ranks=2 split=1\n"
    forgets = "  r0.output[0:2] = r0.input[0:2]\n  r1.output[0:2] = r0.output[0:2]\n"
    too_little = "  r0.output[0:2] = r0.input[0:2] + r1.input[0:2]\n"

    assert Outcome.WRONG is program_verdict(parse_program(head + forgets)).outcome
    verdict = program_verdict(parse_program(head + too_little))
    assert Outcome.UNDEFINED is verdict.outcome
