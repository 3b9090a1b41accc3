"""Which machine an executor is taken to run on, where nobody names one."""

from __future__ import annotations

__all__ = ["EXAMPLE", "assumed"]

EXAMPLE = "h200x8"
"""What is simulated where nobody says which machine."""
_FAMILIES = {"cpu": "cpux", "cuda": "h200x"}


def assumed(executor: str, num_ranks: int) -> str:
    """Return the name of the machine that so many ranks are taken to be on."""
    return f"{_FAMILIES[executor]}{num_ranks}"
