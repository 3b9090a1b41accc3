"""What users and we test with: the reference interpreter, oracles, two made hosts."""

from stretto.testing.interpret import input_counts, interpret, output_counts
from stretto.testing.oracle import (
    draw,
    expected,
    largest_error,
    pairings,
    tolerance,
)

__all__ = [
    "draw",
    "expected",
    "input_counts",
    "interpret",
    "largest_error",
    "output_counts",
    "pairings",
    "tolerance",
]
