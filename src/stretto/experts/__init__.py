"""Experts of a mixture on many ranks: tokens go to theirs, and their sums come back.

In: tokens, the experts that each has chosen, and weights. Out: rows as experts take
them, and each token's sum. Never: a token that is dropped, or an order that changes.
"""

from __future__ import annotations

from stretto.experts.experts import Dispatched, Experts, Underway
from stretto.experts.geometry import Geometry

__all__ = ["Dispatched", "Experts", "Geometry", "Underway"]
