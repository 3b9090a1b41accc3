"""Any interleaving of a proved plan computes what its program says, bit for bit."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.checking.plan_runs.interleave import interleave
from tests.checking.strategies import counts as part_counts
from tests.nightly import examples

from stretto.compiler.plan import Move, Signal, Wait
from stretto.errors import CallError, PlanError, StrettoError
from stretto.program import algorithms, collectives
from stretto.program.collectives import Operator, Shape
from stretto.program.ir import Verified
from stretto.testing import draw, input_counts, interpret

SCHEDULES = [
    "push packets staged blocks=2",
    "push bulk staged",
    "push bulk zero_copy blocks=3",
    "pull bulk staged",
    "pull bulk zero_copy",
]


def inputs_for(program, counts, dtype, op, seed):
    rng = np.random.default_rng(seed)
    return [draw(rng, count, dtype, op) for count in input_counts(program, counts)]


def same(one, other):
    return all(np.array_equal(a, b) for a, b in zip(one, other, strict=True))


@pytest.mark.parametrize("name", algorithms.names())
@settings(max_examples=examples(30))
@given(data=st.data())
def test_every_interleaving_equals_the_interpreter(small, name, data):
    """Random ranks, schedules, sizes, tiles and orders: the bits are the same."""
    one = algorithms.get(name)
    n = data.draw(st.sampled_from([k for k in range(1, 6) if not one.refuses(k)]))
    program = one.build(n)
    in_place = data.draw(st.booleans())
    try:
        plan = small.proved(
            name, n, data.draw(st.sampled_from(SCHEDULES)), in_place=in_place
        )
    except StrettoError:
        return  # not every schedule serves every call in place, and that is said
    kind = collectives.get(program.collective)
    shape = Shape(num_ranks=n, split=program.split, params=program.params)
    equal = in_place or data.draw(st.booleans())
    counts = data.draw(part_counts(program.collective, shape, equal=equal, most=40))
    dtype = data.draw(st.sampled_from(["float16", "int32", "complex64"]))
    op = Operator.PROD if kind.reduces and dtype != "int32" else Operator.SUM
    seed = data.draw(st.integers(0, 1000))
    inputs = inputs_for(program, counts, dtype, op, seed)
    how = {"dtype": dtype, "op": op, "counts": counts}

    got = interleave(plan, inputs, seed=seed, in_place=in_place, tile_bytes=16, **how)
    assert same(interpret(program, inputs, **how), got)


def test_an_average_is_divided_once(small):
    """Also where results are passed on."""
    program = algorithms.get("all_reduce/ring").build(3)
    inputs = [np.full(10, r + 1.0, np.float32) for r in range(3)]
    how = {"dtype": "float32", "op": "avg", "counts": [10]}

    got = interleave(small.proved("all_reduce/ring", 3), inputs, seed=0, **how)
    assert same([np.full(10, 2.0, np.float32)] * 3, got)
    assert same(interpret(program, inputs, **how), got)


def without(plan, kinds):
    """Yield the plan without one signal or wait, in turn, numbers kept in order."""
    for rank, lane, index, step in plan.steps():
        if isinstance(step, kinds):
            steps = list(plan.ranks[rank][lane])
            del steps[index]
            lanes = list(plan.ranks[rank])
            lanes[lane] = tuple(steps)
            ranks = list(plan.ranks)
            ranks[rank] = tuple(lanes)
            yield replace(plan, ranks=tuple(ranks))


@pytest.mark.parametrize("name", ["all_reduce/ring", "all_reduce/two_shot"])
def test_a_missing_wait_comes_out_wrong_under_some_seed(small, name):
    """The interleavings are strong enough to show each race on data."""
    program = algorithms.get(name).build(2)
    plan = small.proved(name, 2, "push bulk staged").value
    how = {"dtype": "int32", "op": "sum", "counts": [8]}
    inputs = inputs_for(program, [8], "int32", Operator.SUM, 7)
    want = interpret(program, inputs, **how)
    mutants = list(without(plan, Wait))
    assert len(mutants) >= 2

    for mutant in mutants:
        runs = (
            interleave(Verified(mutant), inputs, seed=seed, **how) for seed in range(40)
        )
        assert any(not same(want, got) for got in runs)


def test_a_missing_signal_hangs_and_says_who_waits(small):
    """The run ends with the steps that cannot go on."""
    plan = small.proved("all_reduce/ring", 2, "push bulk staged").value
    *_, mutant = without(plan, Signal)  # the last: a later one would stand in for it

    with pytest.raises(
        PlanError, match=r"nobody can go on:\n  rank \d in step \d: wait"
    ):
        interleave(
            Verified(mutant),
            [np.zeros(8, np.int32)] * 2,
            dtype="int32",
            counts=[8],
            seed=0,
        )


def test_a_signal_that_does_not_release_promises_nothing_about_data(small):
    """Data may land after a relaxed signal: a plan that relies on it is caught."""
    program = algorithms.get("broadcast/flat").build(2)
    plan = small.proved("broadcast/flat", 2, "push bulk staged").value
    ranks = tuple(
        tuple(
            tuple(
                s._replace(release=False) if isinstance(s, Signal) else s for s in lane
            )
            for lane in lanes
        )
        for lanes in plan.ranks
    )
    how = {"dtype": "int32", "op": "sum", "counts": [8]}
    inputs = inputs_for(program, [8], "int32", Operator.SUM, 7)
    want = interpret(program, inputs, **how)
    mutant = Verified(replace(plan, ranks=ranks))

    found = [interleave(mutant, inputs, seed=seed, **how) for seed in range(40)]
    assert any(not same(want, got) for got in found)
    assert all(
        same(want, interleave(Verified(plan), inputs, seed=s, **how)) for s in range(40)
    )


def test_the_seed_decides_the_interleaving(small):
    """The same seed repeats a run, races and all."""
    plan = small.proved("all_reduce/two_shot", 3, "push bulk staged").value
    mutant = Verified(next(without(plan, Wait)))
    program = algorithms.get("all_reduce/two_shot").build(3)
    inputs = inputs_for(program, [30], "int32", Operator.SUM, 3)

    def run(seed):
        return interleave(mutant, inputs, dtype="int32", counts=[30], seed=seed)

    assert all(same(run(seed), run(seed)) for seed in range(5))
    assert len({tuple(map(bytes, run(seed))) for seed in range(40)}) > 1


def test_inputs_must_fit_the_counts(small):
    """A wrong size or type says what was got and what is wanted."""
    plan = small.proved("all_reduce/ring", 2)

    with pytest.raises(
        CallError, match=r"rank 0: input of 3 float32 in 1 axes; want 4"
    ):
        interleave(
            plan, [np.zeros(3, np.float32)] * 2, dtype="float32", counts=[4], seed=0
        )


def test_only_a_plan_for_it_is_used_in_place(small):
    """Out of place plans are refused for calls in place."""
    plan = small.proved("all_reduce/one_shot", 2)

    assert not plan.value.in_place
    with pytest.raises(
        CallError, match=r"not for use in place; want a plan lowered so"
    ):
        interleave(
            plan,
            [np.zeros(4, np.float32)] * 2,
            dtype="float32",
            counts=[4],
            seed=0,
            in_place=True,
        )


def test_moves_outnumber_nothing(small):
    """A plan of one rank moves its own data only, and still answers."""
    plan = small.proved("all_reduce/ring", 1)
    given_ = [np.arange(5, dtype=np.int32)]

    got = interleave(plan, given_, dtype="int32", counts=[5], seed=1)
    assert same(given_, got)
    assert all(isinstance(s, Move) for *_, s in plan.value.steps())
