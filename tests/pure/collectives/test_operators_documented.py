"""What the guide says of operators is what is taken."""

from pathlib import Path

import pytest

from stretto.errors import CallError
from stretto.program.collectives import DTYPES, Operator, check

GUIDE = Path(__file__).parents[3] / "docs" / "guides" / "run.md"
KINDS = {"f": "floats", "i": "integers, bool", "u": "integers, bool", "c": "complex"}


def documented():
    """Return the rows of the table: kind of elements, and names of operators."""
    text = GUIDE.read_text().partition("What `op=` may be")[2].partition("\n\nAn ")[0]
    rows = [line.strip("|").split("|") for line in text.splitlines() if "|" in line]
    return {kind.strip(): {n.strip() for n in ops.split(",")} for kind, ops in rows[2:]}


@pytest.mark.parametrize("dtype", sorted(DTYPES))
def test_the_guide_names_what_is_taken(dtype):
    """For every element type and operator; avg of integers is refused, with a way."""
    raw = dtype == "bfloat16" or dtype.startswith("float8")
    kind = "f" if raw else DTYPES[dtype].kind
    wanted = documented()[KINDS.get(kind, "integers, bool")]
    taken = set()
    for op in Operator:
        try:
            check(op, dtype)
            taken.add(op.value)
        except CallError as e:
            refusal = str(e)
            assert op is not Operator.AVG or "divide the sum" in refusal
    assert wanted == taken
