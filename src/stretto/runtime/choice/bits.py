"""What a sum promises of its bits: nothing beyond its type, or that they never vary.

`invariant`: an element's bits depend on the ranks' elements alone, not on how many lie
beside it, where, or how the call is run. So only such plans are chosen as add in rank
order and round once, and others are refused.

`pairs`: the same, but neighbours are added, then neighbouring sums, each rounded. So
the bits are the same on half as many ranks, each of which has added two parts before.
"""

from __future__ import annotations

from stretto.errors import CallError
from stretto.fabric.variables import text_of

ANY, INVARIANT, PAIRS = "any", "invariant", "pairs"
PROMISING = ("all_reduce", "reduce_scatter")
"""Collectives whose calls may ask for it; of the first all calls may be told to."""
VARIABLE = "STRETTO_BITS"


def bits_in(given: object, where: str) -> str:
    """Return what somebody asks for, when that is known."""
    if given not in (ANY, INVARIANT, PAIRS) or not isinstance(given, str):
        want = f"want {INVARIANT!r}, {PAIRS!r} or {ANY!r}"
        raise CallError(f"{where}={given!r:.60}; {want}")
    return given


def bits_of_environment() -> str:
    """Return what this process's environment says, as it stands there."""
    return text_of(VARIABLE, ANY)
