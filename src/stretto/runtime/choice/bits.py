"""What a sum promises of its bits: nothing beyond its type, or that they never vary.

`invariant`: an element's bits depend on the ranks' elements alone, not on how many lie
beside it, where, or how the call is run. So only such plans are chosen as add in rank
order and round once, and others are refused.
"""

from __future__ import annotations

import os

from stretto.errors import CallError

ANY, INVARIANT = "any", "invariant"
PROMISING = ("all_reduce",)
"""Collectives whose calls may ask for it."""
VARIABLE = "STRETTO_BITS"


def bits_in(given: object, where: str) -> str:
    """Return what somebody asks for, when that is known."""
    if given not in (ANY, INVARIANT) or not isinstance(given, str):
        raise CallError(f"{where}={given!r:.60}; want {INVARIANT!r} or {ANY!r}")
    return given


def bits_of_environment() -> str:
    """Return what this process's environment says, as it stands there."""
    return os.environ.get(VARIABLE) or ANY
