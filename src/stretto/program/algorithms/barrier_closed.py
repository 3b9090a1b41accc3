"""Barrier: nothing moves; every plan is closed, and that is a barrier."""

from __future__ import annotations

from stretto.program.lang import Ranks, algorithm


@algorithm("barrier/closed")
def closed(ranks: Ranks) -> None:
    """Nothing moves."""
