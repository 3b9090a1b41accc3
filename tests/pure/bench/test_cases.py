"""What is measured: sizes that fit together, and oracles that miss nothing."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from stretto.bench.workload import cases
from stretto.bench.workload.cases import PAIRS, PATTERNS, TESTS, Check, case_of
from stretto.bench.workload.traffic import read_matrix, spread, weights
from stretto.errors import CallError, UnknownNameError
from stretto.program import collectives
from stretto.program.collectives import Operator


@given(st.sampled_from(TESTS), st.integers(2, 5), st.integers(0, 5000))
def test_every_test_knows_what_comes_out(test, num_ranks, nbytes):
    """Inputs and outputs have the sizes that the case says, on every rank."""
    case = case_of(test, nbytes, num_ranks)

    for rank in range(num_ranks):
        check = Check.fresh(case, rank, seed=3)
        assert case.elements(rank) == (check.x.size, check.want.size)
        assert "" == check.wrong(check.want.copy(), case.dtype)


@given(
    st.sampled_from([t for t in TESTS if t not in (*PAIRS, "barrier")]),
    st.sampled_from(["float32", "bfloat16", "int32"]),
    st.data(),
)
def test_one_wrong_element_is_seen(test, dtype, data):
    """A single value that is off by one is named, wherever it lies."""
    case = case_of(test, 600, 3, dtype=dtype)
    check = Check.fresh(case, data.draw(st.integers(0, 2)), seed=5)
    if not check.want.size:
        return
    at = data.draw(st.integers(0, check.want.size - 1))
    got = check.want.copy()
    got[at] = got[at] ^ 0x4000 if dtype == "bfloat16" else got[at] + 1

    assert check.wrong(got, dtype).startswith(f"element {at} is ")


@pytest.mark.parametrize("op", ["sum", "avg", "max", "prod"])
@pytest.mark.parametrize(
    "test", ["all_reduce", "reduce", "reduce_scatter", "reduce_scatter_v"]
)
def test_repeated_blocks_give_what_the_oracle_gives(test, op, monkeypatch):
    """Large inputs are made of blocks, and so is what is expected of them."""
    monkeypatch.setattr(cases, "_BLOCK", 101)
    case = case_of(test, 5000, 3, op=op)
    Check.fresh.cache_clear()

    checks = [Check.fresh(case, rank, 5) for rank in range(3)]
    Check.fresh.cache_clear()

    outputs = collectives.get(case.collective).oracle(
        case.shape, [c.x for c in checks], Operator.named(op), np.asarray(case.counts)
    )
    for check, output in zip(checks, outputs, strict=True):
        assert np.array_equal(output.astype(np.float32), check.want)


def test_fresh_data_differ_from_seed_to_seed_and_agree_between_ranks():
    """What one rank expects of another is what that one passes."""
    case = case_of("all_gather", 4096, 2)

    first, again = (Check.fresh(case, 0, seed) for seed in (1, 2))
    other = Check.fresh(case, 1, 1)

    assert not np.array_equal(first.x, again.x)
    assert np.array_equal(first.want, np.concatenate([first.x, other.x]))


@given(st.sampled_from(PATTERNS), st.integers(2, 6), st.integers(0, 10_000))
def test_the_busiest_rank_of_a_pattern_moves_what_was_asked_for(pattern, n, count):
    """No row or column of the matrix is above the size, and one comes close."""
    matrix = np.reshape(spread(weights(pattern, n), count), (n, n))
    busiest = max(matrix.sum(axis=0).max(), matrix.sum(axis=1).max())

    assert busiest <= count
    assert busiest >= count - n


def test_patterns_say_who_sends_to_whom():
    """Incast ends at rank 0; one-to-many begins there; pairwise is a permutation."""
    incast, out = weights("incast", 4), weights("one_to_many", 4)
    pairs = weights("pairwise", 4)

    assert [0, 1, 1, 1] == incast[:, 0].tolist()
    assert 0 == incast[:, 1:].sum()
    assert np.array_equal(incast.T, out)
    assert (pairs.sum(axis=0) == 1).all()
    assert 2 == pairs[0].argmax()


def test_combine_returns_what_dispatch_sent():
    """The way back is the transpose; skew makes some ranks busier."""
    flat = weights("moe_dispatch", 4, skew=0.0, seed=1)
    skewed = weights("moe_dispatch", 4, skew=2.0, seed=1)
    back = weights("moe_combine", 4, skew=2.0, seed=1)

    assert np.array_equal(skewed.T, back)
    assert flat.sum(axis=0).std() < skewed.sum(axis=0).std()
    assert (flat.sum(axis=1) == skewed.sum(axis=1)).all()


def test_a_matrix_is_read_from_a_file(tmp_path):
    """Spaces or commas, and lines of remarks."""
    path = tmp_path / "traffic"
    path.write_text("# who to whom\n0 3\n1, 0\n")

    case = case_of("matrix", 400, 2, traffic=read_matrix(str(path), 2))

    assert (0, 100, 33, 0) == case.counts


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("1 2 3\n1 2 3\n", r"2 rows of \[3\] numbers; want 2 of 2"),
        ("1 x\n2 3\n", "want a line of numbers for each rank"),
        ("1 -1\n1 1\n", "a number below 0"),
    ],
)
def test_a_matrix_that_is_none_is_refused(tmp_path, text, said):
    """The message says what is wrong with it."""
    path = tmp_path / "traffic"
    path.write_text(text)

    with pytest.raises(CallError, match=said):
        read_matrix(str(path), 2)


def test_a_wrong_test_is_answered_with_the_right_ones():
    """A slip of the pen is recognised."""
    with pytest.raises(UnknownNameError, match="known: all_reduce"):
        case_of("all_reduc", 8, 2)


def test_pairs_need_two_ranks():
    """One rank has nobody to talk to."""
    with pytest.raises(CallError, match="want at least 2"):
        case_of("latency", 8, 1)
