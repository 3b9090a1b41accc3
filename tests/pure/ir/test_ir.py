"""Chunks are shared fairly, and intervals remember."""

from hypothesis import given
from hypothesis import strategies as st

from stretto.program.ir import Spans, partition


@given(st.integers(0, 10_000), st.integers(1, 40), st.sampled_from([1, 2, 4, 8, 16]))
def test_chunks_cover_everything_and_start_at_whole_vectors(count, parts, itemsize):
    """All elements, in order; every chunk but the last ones starts at 16 bytes."""
    sizes = partition(count, parts, itemsize)

    assert parts == len(sizes)
    assert count == sizes.sum()
    assert sorted(sizes, reverse=True) == list(sizes)
    starts = sizes.cumsum() - sizes
    assert all(start * itemsize % 16 == 0 for start in starts if start < count)


@given(st.lists(st.tuples(st.integers(0, 30), st.integers(1, 9), st.integers(0, 5))))
def test_spans_hold_what_was_last_written(writes):
    """A map of intervals says what a plain list would say."""
    spans, plain = Spans(), [None] * 40
    for start, width, value in writes:
        spans.write(start, start + width, value)
        plain[start : start + width] = [value] * width

    seen = [None] * 40
    for a, b, value in spans.read(0, 40):
        seen[a:b] = [value] * (b - a)
    assert plain == seen
    assert all(a < b for a, b, _ in spans)
