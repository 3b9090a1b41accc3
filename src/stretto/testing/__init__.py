"""What users and we test with: the reference interpreter, oracles, strategies."""

from stretto.testing.cases import SCHEDULES, counts_for, programs, shape_of
from stretto.testing.groups import among, group_programs, relayed
from stretto.testing.interpret import input_counts, interpret, output_counts
from stretto.testing.mutants import program_mutants
from stretto.testing.oracle import (
    draw,
    expected,
    largest_error,
    pairings,
    tolerance,
)
from stretto.testing.plan_mutants import plan_edits, plan_mutants
from stretto.testing.strategies import (
    counts,
    element_counts,
    numbers_of_ranks,
    types_and_operators,
)

__all__ = [
    "SCHEDULES",
    "among",
    "counts",
    "counts_for",
    "draw",
    "element_counts",
    "expected",
    "group_programs",
    "input_counts",
    "interpret",
    "largest_error",
    "numbers_of_ranks",
    "output_counts",
    "pairings",
    "plan_edits",
    "plan_mutants",
    "program_mutants",
    "programs",
    "relayed",
    "shape_of",
    "tolerance",
    "types_and_operators",
]
