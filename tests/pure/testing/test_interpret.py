"""The reference interpreter says what a program means, to the last bit."""

from __future__ import annotations

import sys

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.checking.strategies import numbers_of_ranks, types_and_operators
from tests.nightly import examples

from stretto.errors import CallError, MissingExtraError, UndefinedError
from stretto.program.collectives import Operator, Shape, combine, narrow, widen
from stretto.program.ir import parse_program
from stretto.program.lang import Ranks, algorithm, reduce
from stretto.testing import (
    draw,
    expected,
    input_counts,
    interpret,
    largest_error,
    tolerance,
)


@algorithm("all_reduce/two_shot")
def two_shot(ranks: Ranks) -> None:
    for r in ranks:
        r.output[r] = reduce(q.input[r] for q in ranks)
    for r in ranks:
        for q in r.others:
            q.output[r] = r.output[r]


@algorithm("all_reduce/ring")
def ring(ranks: Ranks) -> None:
    n = len(ranks)
    for r in ranks:
        r.output[:] = r.input[:]
    for step in range(n - 1):
        for r in ranks:
            ranks[r + 1].output[r - step] += r.output[r - step]
    for step in range(n - 1):
        for r in ranks:
            ranks[r + 1].output[r + 1 - step] = r.output[r + 1 - step]


@settings(deadline=None, max_examples=examples(60))
@given(
    st.sampled_from([two_shot, ring]),
    numbers_of_ranks(6),
    types_and_operators(),
    st.integers(0, 120),
    st.integers(0, 2**32),
)
def test_what_a_program_computes_is_what_numpy_computes(
    algo, num_ranks, pairing, count, seed
):
    """Any ranks, type, operator and count agree with the oracle."""
    dtype, op = pairing
    rng = np.random.default_rng(seed)
    program = algo.build(num_ranks)
    inputs = [draw(rng, count, dtype, op) for _ in range(num_ranks)]

    got = interpret(program, inputs, dtype=dtype, op=op, counts=(count,))

    want = expected(
        "all_reduce",
        Shape(num_ranks=num_ranks),
        inputs,
        dtype=dtype,
        op=op,
        counts=(count,),
    )
    for mine, theirs in zip(got, want, strict=True):
        assert largest_error(mine, theirs, dtype) <= tolerance(dtype, num_ranks) * 4
        assert mine.tobytes() == got[0].tobytes()


def test_a_reduce_of_halves_rounds_once():
    """Three bfloat16 values are added in float32 and rounded at the end."""
    inputs = [narrow(np.array([v], np.float32), "bfloat16") for v in (256.0, 1.0, 1.0)]

    (got, *_) = interpret(two_shot.build(3), inputs, dtype="bfloat16", counts=(1,))

    assert 258.0 == widen(got, "bfloat16")[0]


def test_every_addition_of_a_ring_rounds():
    """The same values one by one: 256 + 1 rounds back to 256, twice."""
    inputs = [narrow(np.array([v], np.float32), "bfloat16") for v in (1.0, 1.0, 256.0)]
    program = ring.build(3)

    (got, *_) = interpret(program, inputs, dtype="bfloat16", counts=(1,))

    by_hand = combine(Operator.SUM, [inputs[0], inputs[1]], "bfloat16")
    assert (
        widen(combine(Operator.SUM, [by_hand, inputs[2]], "bfloat16"), "bfloat16")[0]
        == widen(got, "bfloat16")[0]
    )


def test_the_average_is_divided_once_at_the_end():
    """Values that travel on are sums; only what the caller gets is divided."""
    inputs = [np.array([float(r)], np.float32) for r in range(4)]

    got = interpret(
        ring.build(4), inputs, dtype="float32", op=Operator.AVG, counts=(1,)
    )

    assert [1.5] * 4 == [float(part[0]) for part in got]


def test_reading_what_nobody_wrote_names_the_line():
    """The interpreter does not invent values."""
    program = parse_program(
        "program all_reduce/bad collective=all_reduce ranks=1 split=1\n"
        "  scratch s[1]\n"
        "  r0.output[0] = r0.s[0]\n"
    )

    with pytest.raises(UndefinedError, match=r"r0\.s\[0\] is read and nobody wrote it"):
        interpret(program, [np.zeros(3, np.float32)], dtype="float32", counts=(3,))


def test_an_input_of_the_wrong_size_is_refused():
    """The message says what came and what was due."""
    with pytest.raises(CallError, match=r"rank 1: input of 2 float32.*want 3"):
        interpret(
            two_shot.build(2),
            [np.zeros(3, np.float32), np.zeros(2, np.float32)],
            dtype="float32",
            counts=(3,),
        )


def test_input_counts_are_the_whole_vector_of_an_all_reduce():
    """Every rank passes all of it."""
    assert [7, 7, 7] == input_counts(two_shot.build(3), (7,))


def test_strategies_say_what_they_need(monkeypatch):
    """Hypothesis is not a dependency; its absence is explained."""
    monkeypatch.setitem(sys.modules, "hypothesis", None)

    with pytest.raises(MissingExtraError, match="pip install hypothesis"):
        numbers_of_ranks()
