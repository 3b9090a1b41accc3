"""In which order a plan adds is derived from it, and what is said shows in bits."""

import numpy as np
import pytest

from stretto.compiler.lower import lower
from stretto.compiler.plan import Schedule
from stretto.compiler.verify import orders, verify, verify_plan
from stretto.errors import StrettoError
from stretto.lang import algorithm, reduce
from stretto.program import algorithms
from stretto.testing import interpret

WORDS = ("push packets staged", "push bulk staged", "pull bulk staged")
SUMS = ("all_reduce", "reduce_scatter", "reduce")


def plain(parts):
    """Add in rank order, each in float32, and round once; no code of ours."""
    total = parts[0].astype(np.float32)
    for part in parts[1:]:
        total = total + part.astype(np.float32)
    return total.astype(parts[0].dtype)


def adds_plainly(program, collective, num_ranks, dtype):
    """Return whether a program's results have those bits, on numbers that round."""
    parts = num_ranks if collective == "reduce_scatter" else 1
    rng = np.random.default_rng(num_ranks)
    count = 240 * num_ranks
    given = [rng.standard_normal(count * parts).astype(dtype) for _ in range(num_ranks)]
    got = interpret(program, given, dtype=dtype, counts=(count,) * parts)
    want = plain(given)
    return all(
        np.array_equal(mine, want[r * count :][:count] if parts > 1 else want)
        for r, mine in enumerate(got)
        if mine.size
    )


@pytest.mark.parametrize("num_ranks", [3, 4, 5, 8])
@pytest.mark.parametrize("collective", SUMS)
def test_rank_order_is_said_exactly_where_the_bits_are_those(collective, num_ranks):
    """By the interpreter, which knows nothing of trees: on floats that round often."""
    for one in algorithms.of(collective, num_ranks):
        program = verify(one.build(num_ranks))
        same = all(
            adds_plainly(program.value, collective, num_ranks, dtype)
            for dtype in ("float32", "float16")
        )

        assert same == orders(program).rank_order, one.name


@pytest.mark.parametrize("num_ranks", [2, 3, 4])
@pytest.mark.parametrize("words", WORDS)
def test_a_plan_adds_as_its_program_does(num_ranks, words):
    """The plan is run on symbols by itself; its trees are the program's."""
    seen = 0
    for one in algorithms.of("all_reduce", num_ranks):
        program = verify(one.build(num_ranks))
        try:
            plan = verify_plan(lower(program, Schedule.parse(words)), program)
        except StrettoError:
            continue
        seen += 1
        assert set(orders(program).trees) == set(orders(plan).trees)
        assert orders(program).rank_order == orders(plan).rank_order

    assert seen >= 4


@algorithm("all_reduce/in_steps")
def in_steps(ranks):
    """Add one rank after the other: rank order, and rounded after each."""
    first = ranks[0]
    first.output[:] = first.input[:]
    for q in ranks[1:]:
        first.output[:] = reduce(first.output[:], q.input[:])
    for q in ranks[1:]:
        q.output[:] = first.output[:]


@algorithm("all_reduce/backwards")
def backwards(ranks):
    """Add all at once, the last rank first."""
    for r in ranks:
        r.output[:] = reduce(q.input[:] for q in reversed(ranks[:]))


@algorithm("all_reduce/half_each")
def half_each(ranks):
    """Add half of it in rank order, and half in another."""
    n = len(ranks[0].output)
    for r in ranks:
        r.output[: n // 2] = reduce(q.input[: n // 2] for q in ranks)
        r.output[n // 2 :] = reduce(q.input[n // 2 :] for q in reversed(ranks[:]))


@pytest.mark.parametrize(
    ("one", "trees"),
    [
        (in_steps, ("(r0.input[0] + r1.input[0]) + r2.input[0]",)),
        (backwards, ("r2.input[0] + r1.input[0] + r0.input[0]",)),
    ],
)
def test_other_trees_are_spelled_and_are_not_rank_order(one, trees):
    """Steps round in between; backwards is another order."""
    found = orders(verify(one.build(3)))

    assert (trees, False, False) == found


def test_one_chunk_in_another_order_is_enough():
    """A row's bits would tell where it lies."""
    found = orders(verify(half_each.build(4)))

    assert 2 == len(found.trees)
    assert not found.rank_order


def test_what_only_moves_has_no_order():
    """Nothing is added, so nothing can be added otherwise."""
    found = orders(verify(algorithms.get("all_gather/ring").build(3)))

    assert ((), True, True) == found


@pytest.mark.parametrize("num_ranks", [1, 2, 3, 4, 6, 8])
def test_pairs_are_neighbours_and_then_neighbouring_sums(num_ranks):
    """As it is spelled by hand here; of other numbers of ranks there are none."""
    level = [f"r{r}.input[0]" for r in range(num_ranks)]
    while len(level) > 1:
        both = zip(level[::2], level[1::2], strict=False)
        level = [f"({one} + {other})" for one, other in both]
    for name in ("recursive_doubling", "one_shot", "rabenseifner", "swing"):
        one = algorithms.get(f"all_reduce/{name}")
        if one.refuses(num_ranks):
            continue
        found = orders(verify(one.build(num_ranks)))
        is_whole = num_ranks & (num_ranks - 1) == 0
        spelled = level[0][1:-1] if num_ranks > 1 else level[0]
        assert found.pairs == (is_whole and found.trees == (spelled,)), name
