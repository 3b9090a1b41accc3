"""Compile a proved program into a plan, and rewrite proved plans: proved each time."""

from stretto.lower.batching import SIDE_BY_SIDE, Batch, Batched, as_one_kernel, batched
from stretto.lower.closing import check_closed, closed
from stretto.lower.copying import Copied, barrier_plan, copied
from stretto.lower.halves import (
    Halves,
    hands_round_on_engine,
    in_halves,
    why_not_in_halves,
)
from stretto.lower.pipeline import lower

__all__ = [
    "SIDE_BY_SIDE",
    "Batch",
    "Batched",
    "Copied",
    "Halves",
    "as_one_kernel",
    "barrier_plan",
    "batched",
    "check_closed",
    "closed",
    "copied",
    "hands_round_on_engine",
    "in_halves",
    "lower",
    "why_not_in_halves",
]
