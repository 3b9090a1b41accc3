"""Successive halving: many are measured shortly, the better half longer, and so on.

What it decides depends only on what it is told, so a recorded run can be replayed; the
one thing it does not know is the time, and rank 0 tells that.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from stretto.bench.stats import Interval, ratio_interval

__all__ = ["Decision", "Measure", "decide", "halve"]

Times = Sequence[float]
Measure = Callable[[Sequence[str], int], Mapping[str, Times]]
"""Measure pins in turn, so many batches each; what failed is left out."""

_FIRST, _LAST = 5, 30
"""Batches of the first round, and of the confirmation."""
_FAMILIES, _FINALISTS = 3, 2


@dataclass(frozen=True, slots=True, kw_only=True)
class Decision:
    """What serves a size, and how it was found."""

    pin: str
    us: float
    untuned: str
    untuned_us: float
    interval: Interval | None
    """Of tuned over untuned, where they differ."""
    tried: int


def halve(
    pins: Sequence[str], measure: Measure, is_over: Callable[[], bool], *, keep: int
) -> list[str]:
    """Return so many of the pins that are left, the best first."""
    left, batches = list(dict.fromkeys(pins)), _FIRST
    while len(left) > keep and not is_over():
        found = measure(left, batches)
        ordered = sorted(found, key=lambda pin: float(np.median(found[pin])))
        if len(ordered) <= keep:
            return ordered
        left = ordered[: max(keep, math.ceil(len(ordered) / 2))]
        batches *= 2
    return left[:keep]


def decide(
    pins: Sequence[str],
    untuned: str,
    measure: Measure,
    is_over: Callable[[], bool],
    *,
    expand: Callable[[Sequence[str]], Sequence[str]],
    seed: int,
) -> Decision | None:
    """Return the best of the pins, confirmed against what would serve untuned.

    First one pin stands for each family; then the numbers that the best families have
    are tried: `expand` gives them. The winner is taken only if it is faster beyond
    noise, so tuning never makes anything worse.
    """
    families = halve([untuned, *pins], measure, is_over, keep=_FAMILIES)
    numbers = [pin for pin in expand(families) if pin not in families]
    finalists = halve([*families, *numbers], measure, is_over, keep=_FINALISTS)
    last = list(dict.fromkeys((untuned, *finalists)))
    found = measure(last, _LAST)
    if not found:
        return None
    medians = {pin: float(np.median(times)) for pin, times in found.items()}
    best = min(medians, key=lambda pin: (medians[pin], pin))
    interval = None
    if untuned in found and best != untuned:
        interval = ratio_interval(found[untuned], found[best], seed=seed)
        if interval.high >= 1:
            best = untuned
    return Decision(
        pin=best,
        us=medians[best],
        untuned=untuned,
        untuned_us=medians.get(untuned, math.inf),
        interval=interval,
        tried=len(dict.fromkeys((untuned, *pins, *numbers))),
    )
