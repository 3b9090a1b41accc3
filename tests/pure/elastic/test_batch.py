"""The batch that does not change with the number of ranks, and hosts that flap."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

import stretto
from stretto.elastic import Flapping
from stretto.errors import CallError

NUMBERS = st.lists(st.integers(1, 12), min_size=1, max_size=4)


def fits(batch, micros, ranks):
    """The micro-batches with which so many ranks divide a batch."""
    return [m for m in micros if batch % (m * ranks) == 0]


@given(st.integers(1, 200), NUMBERS, NUMBERS)
def test_the_batch_is_the_one_that_serves_most_and_all_divide_it(most, micros, ranks):
    """By looking at every batch there is; of several the largest."""
    served = {
        batch: sum(bool(fits(batch, micros, n)) for n in set(ranks))
        for batch in range(1, most + 1)
        if any(batch % m == 0 for m in micros)
    }
    best = max(served.values(), default=0)
    if not best:
        with pytest.raises(CallError, match="elastic_batch: "):
            stretto.elastic_batch(most, micros, ranks)
        return
    found = stretto.elastic_batch(most, micros, ranks)

    assert max(b for b, many in served.items() if many == best) == found.batch
    assert {n for n in ranks if fits(found.batch, micros, n)} == set(
        found.micro_batches
    )
    for n, micro in found.micro_batches.items():
        assert max(fits(found.batch, micros, n)) == micro
        assert found.batch == micro * n * found.accumulation(n)


def test_a_number_of_ranks_that_does_not_divide_it_is_told_the_nearest():
    """And odd numbers are refused where they are given."""
    found = stretto.elastic_batch(48, [2, 4], [2, 3, 4])
    assert (48, 4) == (found.batch, found.accumulation(3))
    with pytest.raises(CallError, match=r"not divided evenly by 5 ranks.*3, 4"):
        found.accumulation(5)
    with pytest.raises(CallError, match="micro_batches=0; want whole numbers from 1"):
        stretto.elastic_batch(8, [0], [2])
    with pytest.raises(
        CallError, match="max_batch=3 is below the smallest micro-batch"
    ):
        stretto.elastic_batch(3, [4], [2])


@given(st.lists(st.tuples(st.sampled_from("ab"), st.floats(0, 90)), max_size=40))
def test_a_host_waits_longer_with_each_loss_and_is_let_in_again_in_the_end(losses):
    """Another host has nothing to do with it; after a calm it is as good as new."""
    flapping, now, row, last = Flapping(), 0.0, 0, 0.0
    for host, after in losses:
        if host == "a":
            lasts = flapping.out_s if row >= flapping.most else flapping.calm_s
            row = row + 1 if row and now + after < last + lasts else 1
            last = now + after
        now += after
        flapping.lose(host, now)
        if host == "a":
            waits = flapping.from_when("a", now) - now
            expected = 0.0 if row == 1 else flapping.first_s * 2 ** (row - 2)
            assert (
                flapping.out_s if row >= flapping.most else expected
            ) == pytest.approx(waits)
            assert bool(flapping.refusal("a", now)) == (row >= flapping.most)
    assert "" == flapping.refusal("a", now + flapping.out_s)
    assert "" == flapping.refusal("never seen", now)
