"""The loop of `dispatch`, compiled by Numba: the same plans, forty times as fast.

So it may come in at any moment of a search.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from types import FunctionType
from typing import Any, TypeAlias

import numpy as np

from stretto.synth.planning.dispatch import PARTS, compacted, dispatched, tailed

__all__ = ["Functions", "compiled"]


def _whole(count: int, value: int) -> Any:
    return np.full(count, value, np.int64)


def _numbers(count: int) -> Any:
    return np.empty(count, np.float64)


Functions: TypeAlias = tuple[Callable[..., int], Callable[..., int], Callable[..., Any]]
"""What makes a plan, what makes it tight, and what says how long chains are."""
_made: list[Functions] = []


def compiled() -> Functions | None:
    """Return the functions compiled, made once; None where Numba is missing."""
    if not _made:
        try:
            from numba import njit
        except ImportError:
            return None
        try:
            njit(cache=True)(PARTS[0])
            njit = partial(njit, cache=True)  # kept for the next process
        except RuntimeError:  # nowhere to keep it
            pass
        space: dict[str, Any] = {"np": np, "__name__": __name__}
        for name, part in (("whole", _whole), ("numbers", _numbers)):
            space[name] = _linked(part, space, njit)
        for part in PARTS:
            space[part.__name__] = _linked(part, space, njit)
        _made.append(
            (
                _linked(dispatched, space, njit),
                _linked(compacted, space, njit),
                _linked(tailed, space, njit),
            )
        )
    return _made[0]


def _linked(function: Any, space: dict[str, Any], njit: Any) -> Callable[..., int]:
    """Return a function compiled that calls others that are compiled."""
    copy = FunctionType(function.__code__, space, function.__name__)
    made: Callable[..., int] = njit(copy)
    return made
