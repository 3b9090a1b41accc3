"""How much a search may cost, and from which seed it starts."""

from __future__ import annotations

import math
from dataclasses import dataclass

from stretto.errors import CallError

__all__ = ["Budget"]

_SEEDS = 1 << 31
"""What a solver takes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Budget:
    """How long a solver may think, so that the same seed gives the same answer."""

    seconds: float = 30.0
    """About seconds of one core, counted in the solver's deterministic clock."""
    seed: int = 0
    whole: float | None = None
    """Seconds of the clock for all of a search; None: as long as it takes."""

    def __post_init__(self) -> None:
        """Refuse what is no time."""
        for name, value in (("seconds", self.seconds), ("whole", self.whole)):
            if value is not None and not 0 <= value < math.inf:
                raise CallError(f"budget {name}={value}; want 0 or more seconds")
        if not 0 <= self.seed < _SEEDS:
            raise CallError(f"seed={self.seed}; want 0 to {_SEEDS - 1}")

    @classmethod
    def within(cls, seconds: float, seed: int = 0) -> Budget:
        """Return a budget for a whole search, of which solvers have a half."""
        return cls(seconds=seconds / 2, seed=seed, whole=seconds)
