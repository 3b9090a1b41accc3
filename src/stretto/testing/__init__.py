"""What users and we test with: the reference interpreter, oracles, strategies."""

from stretto.testing.interpret import input_counts, interpret, output_counts
from stretto.testing.oracle import (
    draw,
    expected,
    largest_error,
    pairings,
    tolerance,
)
from stretto.testing.strategies import (
    counts,
    element_counts,
    numbers_of_ranks,
    types_and_operators,
)

__all__ = [
    "counts",
    "draw",
    "element_counts",
    "expected",
    "input_counts",
    "interpret",
    "largest_error",
    "numbers_of_ranks",
    "output_counts",
    "pairings",
    "tolerance",
    "types_and_operators",
]
