"""Who goes first when more strangers stand at a door than it has room for.

Whoever has proved itself is no stranger, and makes room for nobody.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import TypeVar

__all__ = ["first_to_go"]

T = TypeVar("T")


def first_to_go(strangers: Mapping[T, str]) -> T | None:
    """Return the oldest of the source that most have come from; None: nobody is there.

    `strangers` are in the order in which they came, each with its source.
    """
    counted = Counter(strangers.values())
    if not counted:
        return None
    busiest = counted.most_common(1)[0][0]
    return next(one for one, source in strangers.items() if source == busiest)
