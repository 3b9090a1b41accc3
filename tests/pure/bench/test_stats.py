"""What is said of times, and of two sets of them."""

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from stretto.bench.stats import geomean, summarise
from stretto.search.noise import ratio_interval

TIMES = hnp.arrays(
    float, hnp.array_shapes(min_dims=2, max_dims=2), elements=st.floats(0.1, 1e5)
)


@given(TIMES)
def test_a_batch_takes_as_long_as_its_slowest_rank(times):
    """Every figure lies between the extremes, in order; none is below any rank's."""
    found = summarise(times)

    assert found.max_us == times.max()
    assert found.min_us == times.max(axis=0).min()
    figures = [found.min_us, found.p50_us, found.p95_us, found.p99_us, found.max_us]
    assert all(a <= b * (1 + 1e-12) for a, b in pairwise(figures))


@given(TIMES)
def test_a_whole_loop_counts_where_it_is_known(times):
    """From the first rank in to the last rank out is never less than any rank's own."""
    whole = times.sum(axis=0)
    found = summarise(times, whole)

    assert found.max_us == whole.max()
    assert found.p50_us >= summarise(times).p50_us * (1 - 1e-12)
    assert found.slowest_rank == summarise(times).slowest_rank


def test_the_slowest_rank_is_named():
    """It is the one whose median is the largest, not the one with the worst moment."""
    found = summarise([[1, 1, 90], [5, 5, 5], [2, 2, 2]])

    assert 1 == found.slowest_rank


@given(st.lists(st.floats(0.01, 100), min_size=1))
def test_a_geometric_mean_of_inverses_is_the_inverse(ratios):
    """Neither side of a comparison is favoured."""
    mean, inverse = geomean(ratios), geomean(1 / r for r in ratios)

    assert mean is not None
    assert 1 == pytest.approx(mean * inverse)


def test_nothing_has_no_mean():
    """No ratio that counts, no mean."""
    assert geomean([]) is None
    assert geomean([0.0, float("inf")]) is None


def test_an_interval_covers_no_change_and_excludes_a_large_one():
    """Noise alone gives an interval around one; half the time does not."""
    rng = np.random.default_rng(1)
    before, again = rng.gamma(20, 0.5, (2, 60))

    same = ratio_interval(before, again, seed=0)
    faster = ratio_interval(before, again / 2, seed=0)

    assert same.low < 1.05
    assert same.high > 0.95
    assert faster.high < 0.7
    assert same == ratio_interval(before, again, seed=0)
