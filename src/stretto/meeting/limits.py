"""How long ranks may wait and how many there may be: checked where users say so."""

from __future__ import annotations

from numbers import Integral, Real
from typing import Any

from stretto.errors import CallError
from stretto.meeting.messages import LONGEST_S

MOST_RANKS = 4096
"""The hub hands a descriptor of every rank's process to every rank."""


def check_deadline(given: Any, what: str) -> float:
    """Return a deadline in seconds, when it is one."""
    is_number = isinstance(given, Real) and not isinstance(given, bool)
    if is_number and 0 < given <= LONGEST_S:
        return float(given)
    raise CallError(
        f"{what}: deadline_s={given!r}; want seconds, more than 0 and at most "
        f"{LONGEST_S:g}"
    )


def check_num_ranks(given: Any, what: str) -> int:
    """Return a number of ranks, when so many can meet."""
    is_number = isinstance(given, Integral) and not isinstance(given, bool)
    if is_number and 1 <= given <= MOST_RANKS:
        return int(given)
    raise CallError(
        f"{what}: num_ranks={str(given)[:40]}; at least one rank is needed, and at "
        f"most {MOST_RANKS} can meet"
    )
