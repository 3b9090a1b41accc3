"""Chunks are shared fairly, and intervals remember."""

from itertools import pairwise

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


@given(
    st.lists(st.tuples(st.integers(0, 30), st.lists(st.integers(0, 2), min_size=1))),
    st.integers(0, 60),
    st.integers(1, 40),
)
def test_spans_hold_pieces_that_were_written_together(writes, start, width):
    """Neighbours that are equal become one; what is read is clipped on both sides."""
    spans, plain = Spans(), [None] * 200
    for at, values in writes:
        spans.write_all([(at + i, at + i + 1, v) for i, v in enumerate(values)])
        plain[at : at + len(values)] = values
        pieces = spans.read(at, at + len(values))
        assert len(pieces) == 1 + sum(a != b for a, b in pairwise(values))

    seen = [None] * 200
    for a, b, value in spans.read(start, start + width):
        assert start <= a < b <= start + width
        seen[a:b] = [value] * (b - a)
    assert plain[start : start + width] == seen[start : start + width]
