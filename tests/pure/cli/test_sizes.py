"""Sizes as people write them."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stretto.errors import CallError
from stretto.runtime.choice import parse_size, parse_sizes, spell_size


@given(st.integers(0, 1 << 50))
def test_a_size_that_is_spelled_reads_back(nbytes):
    """The short form loses nothing."""
    assert nbytes == parse_size(spell_size(nbytes))


@pytest.mark.parametrize(
    ("text", "sizes"),
    [
        ("8", [8]),
        ("4K", [4096]),
        ("1M,2k", [1 << 20, 2048]),
        ("1K:8K", [1024, 2048, 4096, 8192]),
        ("1K:1M:4", [1 << k for k in (10, 12, 14, 16, 18, 20)]),
        ("1K:1M:32", [1 << 10, 1 << 15, 1 << 20]),
        ("8:9", [8]),
    ],
)
def test_ranges_multiply(text, sizes):
    """Powers of two, or the factor that is given."""
    assert sizes == parse_sizes(text)


@pytest.mark.parametrize(
    "text", ["", "K", "-1", "1.5M", "1K:", "1:2:3:4", "2:1", "1:8:1"]
)
def test_what_is_no_size_is_refused(text):
    """The message shows what was given."""
    with pytest.raises(CallError, match="size"):
        parse_sizes(text)
