"""Promises and oracles say the same, and operators round as they should."""

import numpy as np
import pytest
from tests.checking.cases import counts_for, programs, shape_of
from tests.checking.judge import program_is_right

from stretto.errors import CallError, UnknownNameError
from stretto.program import collectives
from stretto.program.collectives import DTYPES, Operator, Shape, combine, finish, widen


def test_the_catalogue_has_the_ten():
    """Send and recv are the permute of one pair."""
    ten = "all_gather all_reduce all_to_all barrier broadcast gather permute reduce"

    assert (*ten.split(), "reduce_scatter", "scatter") == collectives.names()
    with pytest.raises(UnknownNameError, match="known: all_reduce"):
        collectives.get("all_redoce")


@pytest.mark.parametrize("n", [1, 2, 3, 4])
def test_promise_and_oracle_agree(n):
    """Whatever keeps the promise computes what the oracle says."""
    for label, program in programs(n):
        assert program_is_right(program, seed=n), label


def test_symbols_cover_what_counts_say():
    """Sizes of a buffer's chunks add up to its elements."""
    for _, program in programs(3):
        kind, shape = collectives.get(program.collective), shape_of(program)
        counts = counts_for(program, 20)
        sizes = kind.symbol_sizes(shape, np.array(counts), 4)
        assert kind.num_symbols(shape) == len(sizes)
        assert sum(counts) == sizes.sum()


def test_wrong_counts_are_answered():
    """As many counts as the collective has parts."""
    with pytest.raises(CallError, match="want 3 of them"):
        collectives.get("all_gather").symbol_sizes(Shape(num_ranks=3), [4, 4], 4)


def test_halves_are_added_in_single_precision_and_rounded_once():
    """1 + 2^-11 + 2^-11 in float16: each alone is lost, both together are not."""
    one, tiny = np.float16([1]), np.float16([2**-11])

    assert combine(Operator.SUM, [one, tiny, tiny], "float16") == np.float16(1 + 2**-10)


def test_bfloat16_rounds_to_nearest_even_and_keeps_nan():
    """Raw 16 bits, no other package."""
    bits = np.array([0x3F80, 0x7FC1, 0x7F80], np.uint16)
    half_ulp = np.array([0x3B80, 0x3F80, 0xFF80], np.uint16)  # 2^-8, 1, -inf

    total = combine(Operator.SUM, [bits, half_ulp], "bfloat16")

    assert total[0] == 0x3F80
    assert np.isnan(widen(total, "bfloat16")[1:]).all()


def test_min_and_max_carry_nan():
    """As NumPy does."""
    nan, one = np.float32([np.nan]), np.float32([1])

    for op in (Operator.MIN, Operator.MAX):
        assert np.isnan(combine(op, [one, nan], "float32")).all()


def test_avg_divides_once_at_the_end():
    """The sum, divided by the number of ranks."""
    total = combine(Operator.AVG, [np.float32([1]), np.float32([4])], "float32")

    assert total == 5
    assert finish(Operator.AVG, total, 2, "float32") == 2.5


def test_complex_products_are_the_schoolbooks_on_every_processor():
    """Each product is rounded before it is added; where NumPy fuses, it is not."""
    x = np.complex64([1 + 2**-12 + 1j])

    assert combine(Operator.PROD, [x, x], "complex64") == [2**-11 + (2 + 2**-11) * 1j]
    assert np.float64(x.real[0]) ** 2 - 1 == 2**-11 + 2**-24


@pytest.mark.parametrize(
    ("op", "dtype"),
    [("avg", "int32"), ("max", "complex64"), ("band", "float32"), ("bor", "bfloat16")],
)
def test_operators_that_make_no_sense_are_refused(op, dtype):
    """With those that do."""
    with pytest.raises(CallError, match="it takes sum"):
        collectives.check(Operator.named(op), dtype)


def test_every_dtype_has_a_storage():
    """Fourteen of NumPy's, bfloat16, and two of eight bits."""
    assert len(DTYPES) == 17
    assert all(collectives.storage(name).itemsize > 0 for name in DTYPES)
