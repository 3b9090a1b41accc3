"""Partial back-propagation: what it saves, and what of that a scheduler gets."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stretto.errors import CallError
from stretto.network import jigsaw


@settings(max_examples=30)
@given(
    st.integers(1, 8), st.integers(1, 10), st.integers(8, 24), st.integers(0, 1 << 20)
)
def test_no_more_is_done_than_there_is_time_for(workers, many, ranks, seed):
    """Whole iterations fill ranks at most; partial ones do what that saves more."""
    jobs = jigsaw.some_jobs(many, workers=workers, seed=seed)
    whole, partial = jigsaw.efficiency(jobs, ranks=ranks, ms=8_000)
    saved = (workers - 1) / (3 * workers)

    assert whole <= 1 + 1e-9
    assert partial <= 1 / (1 - saved) + 1e-9
    assert partial >= whole * 0.97


@pytest.mark.parametrize("workers", [4, 8])
def test_what_is_saved_is_used(workers):
    """20 to 28 % of the time of ranks: nearly all of (n - 1) / 3n."""
    for seed in range(3):
        jobs = jigsaw.some_jobs(12, workers=workers, seed=seed)
        whole, partial = jigsaw.efficiency(jobs, ranks=16)

        assert 0.20 <= 1 - whole / partial <= 0.28


def test_one_job_alone_gains_nothing():
    """Its iterations are as long as their longest worker."""
    (job,) = jigsaw.some_jobs(1, workers=4, seed=1)
    done = [
        jigsaw.iterations([job], ranks=4, ms=9_000, partial=p) for p in (False, True)
    ]

    assert done[0] == done[1]


def test_what_is_no_job_is_refused():
    """In one sentence."""
    with pytest.raises(CallError, match=r"0 workers, .* want at least 1 worker"):
        jigsaw.some_jobs(1, workers=0, seed=0)
    jobs = jigsaw.some_jobs(1, workers=9, seed=0)
    with pytest.raises(CallError, match="job0, workers: got 9; want at most 8"):
        jigsaw.iterations(jobs, ranks=8, ms=1.0, partial=True)
