"""Between which numbers a term's values lie, for whole boxes of features at once.

Every operation of the machine rounds to the nearest number and never turns an order
round, so its results at the ends of an interval bound those within; only logarithms,
which two libraries may round apart, get a little room. Truths are 0, 1 or in between.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from stretto.search.language.terms import LARGEST, Term

__all__ = ["Bounds", "bounds"]

Bounds: TypeAlias = tuple[NDArray[Any], NDArray[Any]]
"""The least and the most, a number for each box."""
_ROOM = 1e-14


def bounds(term: Term, boxes: Mapping[str, Bounds]) -> Bounds:
    """Return what bounds a term's values when its features are in boxes."""
    with np.errstate(all="ignore"):
        return _bounds(term, boxes)


def _bounds(term: Term, boxes: Mapping[str, Bounds]) -> Bounds:
    if term.op == "number":
        shape = next(iter(boxes.values()))[0].shape
        return np.full(shape, term.value), np.full(shape, term.value)
    if term.op == "feature":
        low, high = boxes[term.name]
        return _cut(low), _cut(high)
    args = [_bounds(arg, boxes) for arg in term.args]
    if term.op == "where":
        return _either(*args)
    (low, high), (least, most) = args[0], args[-1]
    match term.op:
        case "neg":
            return -high, -low
        case "not":
            return 1.0 - high, 1.0 - low
        case "log":
            low, high = (np.sign(a) * np.log(1.0 + np.abs(a)) for a in (low, high))
            return low - _ROOM * np.abs(low), high + _ROOM * np.abs(high)
        case "add":
            return _cut(low + least), _cut(high + most)
        case "sub":
            return _cut(low - most), _cut(high - least)
        case "min":
            return np.minimum(low, least), np.minimum(high, most)
        case "max" | "or":
            return np.maximum(low, least), np.maximum(high, most)
        case "mul" | "and":
            return _hull([low * least, low * most, high * least, high * most])
        case "div":
            return _quotient(low, high, least, most)
        case "lt":
            return (high < least) * 1.0, (low < most) * 1.0
        case "le":
            return (high <= least) * 1.0, (low <= most) * 1.0
        case "gt":
            return (low > most) * 1.0, (high > least) * 1.0
        case _:
            return (low >= most) * 1.0, (high >= least) * 1.0


def _cut(values: Any) -> Any:
    return np.minimum(np.maximum(values, -LARGEST), LARGEST)


def _hull(corners: list[Any]) -> Bounds:
    return _cut(np.minimum.reduce(corners)), _cut(np.maximum.reduce(corners))


def _either(test: Bounds, yes: Bounds, no: Bounds) -> Bounds:
    """Return the bounds of what may be chosen."""
    never, always = test[1] == 0, test[0] != 0
    low = np.where(always, yes[0], np.where(never, no[0], np.minimum(yes[0], no[0])))
    high = np.where(always, yes[1], np.where(never, no[1], np.maximum(yes[1], no[1])))
    return low, high


def _quotient(low: Any, high: Any, least: Any, most: Any) -> Bounds:
    """Return the bounds of quotients: by 0 it is 0, and by what is near it anything."""
    lows, highs = _hull([low / least, low / most, high / least, high / most])
    across = (least <= 0) & (most >= 0)
    up = ((high > 0) & (most > 0)) | ((low < 0) & (least < 0))
    down = ((low < 0) & (most > 0)) | ((high > 0) & (least < 0))
    return (
        np.where(across, np.where(down, -LARGEST, 0.0), lows),
        np.where(across, np.where(up, LARGEST, 0.0), highs),
    )
