"""A block of addresses is given out and taken back without overlap or loss."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

pytest.importorskip("torch")

from stretto.torch.memory import Ranges


@given(
    st.lists(
        st.one_of(st.integers(1, 5000), st.integers(0, 20).map(lambda k: ("free", k))),
        max_size=60,
    )
)
def test_parts_do_not_overlap_and_all_comes_back(asked):
    """After any takes and gives, the whole block can be taken at once."""
    start, nbytes = 512 * 7, 512 * 40
    ranges, held = Ranges(start, nbytes), []
    for one in asked:
        if isinstance(one, tuple):
            if held:
                ranges.give(*held.pop(one[1] % len(held)))
            continue
        at = ranges.take(one)
        if at:
            assert at % 512 == 0
            assert start <= at
            assert at + one <= start + nbytes
            assert all(at + one <= a or a + size <= at for a, size in held)
            held.append((at, one))
    for part in held:
        ranges.give(*part)
    assert start == ranges.take(nbytes)
    assert 0 == ranges.take(1)


def test_ranks_that_ask_for_the_same_get_the_same_places():
    """Places depend on what is asked alone, not on where the block begins."""
    one, two = Ranges(512 * 3, 1 << 20), Ranges(512 * 9, 1 << 20)
    for size in (700, 5, 40_000, 512):
        assert 512 * 6 == two.take(size) - one.take(size)
