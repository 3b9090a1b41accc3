"""Successive halving: many are measured shortly, the better half longer, and so on.

A search is a generator: it yields what it wants measured and is sent the times. So many
searches can take turns, and what one asks for next is compiled while others measure.
What it decides depends only on what it is told: a recorded run can be replayed.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np

from stretto.search.noise import Interval, ratio_interval

Times: TypeAlias = Mapping[str, Sequence[float]]
"""Times of the batches of every pin; what failed is left out."""

_FIRST, _LAST = 5, 30
"""Batches of the first round, and of the confirmation."""
_FAMILIES, _FINALISTS = 3, 4
_WITHIN = 1.3
"""A family whose leader takes so many times as long as the first is not widened."""
_REFINED = 2
"""Finalists whose neighbours are tried."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TrialRequest:
    """What shall be measured: so many batches of each pin, in turn."""

    pins: tuple[str, ...]
    batches: int
    is_last: bool = False


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
    shipped: str = ""
    """What the shipped profile would choose, where that is only looked at."""
    shipped_us: float = math.inf
    shipped_interval: Interval | None = None
    """Of what was found over shipped, where they differ."""
    found: str = ""
    """What the search found, where the shipped choice is faster, and so kept."""
    found_us: float = math.inf


Search: TypeAlias = Generator[TrialRequest, Times, "Decision | None"]


@dataclass(frozen=True, slots=True, kw_only=True)
class SearchSpace:
    """What may be tried for one size."""

    pins: Sequence[str]
    """One for each family."""
    untuned: str
    shipped: str = ""
    """Measured at the end, beside the finalists; kept where it is faster."""
    expand: Callable[[Sequence[str]], Sequence[str]]
    """Return the numbers that some families have."""
    refine: Callable[[Sequence[str]], Sequence[str]]
    """Return the neighbours of the best."""


def search(space: SearchSpace, is_over: Callable[[], bool], *, seed: int) -> Search:
    """Return the best of a space, confirmed against what would serve untuned.

    First one pin stands for each family; then the numbers that the best families have
    are tried, then the neighbours of the best of those. The winner is taken only if it
    is faster beyond noise, so tuning never makes anything worse. Nor than what is
    shipped, where the search begins from scratch: that is not searched, but kept.
    """
    tried = dict.fromkeys((space.untuned, *space.pins))
    left = yield from _halved(tuple(tried), is_over, keep=_FAMILIES, within=_WITHIN)
    for wider, widened in (
        (space.expand, _FAMILIES),
        (space.refine, _REFINED),
        (space.refine, _REFINED),
    ):
        if is_over():
            break
        near = dict.fromkeys(wider(left[:widened]))
        more = [pin for pin in near if pin not in tried]
        tried |= dict.fromkeys(more)
        if more:
            left = yield from _halved((*left, *more), is_over, keep=_FINALISTS)
    beside = (space.untuned, space.shipped) if space.shipped else (space.untuned,)
    last = tuple(dict.fromkeys((*beside, *left)))
    found = yield TrialRequest(pins=last, batches=_LAST, is_last=True)
    own = [pin for pin in found if pin in tried] or list(found)
    return _decided(space, found, own, len(tried), seed) if own else None


def _halved(
    pins: Sequence[str],
    is_over: Callable[[], bool],
    *,
    keep: int,
    within: float = math.inf,
) -> Generator[TrialRequest, Times, list[str]]:
    """Return so many of the pins that are left, the best first.

    They are ordered by their fastest batch: a short look is disturbed by whatever is
    compiled meanwhile, and what disturbs never makes anything faster.
    """
    left, batches = list(pins), _FIRST
    while len(left) > keep and not is_over():
        found = yield TrialRequest(pins=tuple(left), batches=batches)
        if not found and is_over():  # there was no time to measure them
            break
        fastest = {pin: min(times) for pin, times in found.items()}
        ordered = sorted(found, key=lambda pin: (fastest[pin], pin))
        ordered = [p for p in ordered if fastest[p] <= within * fastest[ordered[0]]]
        if len(ordered) <= keep:
            return ordered
        left = ordered[: max(keep, math.ceil(len(ordered) / 3))]
        batches *= 2
    return left[:keep]


def _decided(
    space: SearchSpace, found: Times, own: Sequence[str], tried: int, seed: int
) -> Decision:
    medians = {pin: float(np.median(times)) for pin, times in found.items()}
    best = min(own, key=lambda pin: (medians[pin], pin))
    interval = None
    if space.untuned in own and best != space.untuned:
        interval = ratio_interval(found[space.untuned], found[best], seed=seed)
        if interval.high >= 1:
            best = space.untuned
    shipped_interval, kept = None, ""
    if space.shipped in found and best != space.shipped:
        shipped_interval = ratio_interval(found[space.shipped], found[best], seed=seed)
        if shipped_interval.low > 1:
            kept, best = best, space.shipped
    return Decision(
        pin=best,
        us=medians[best],
        untuned=space.untuned,
        untuned_us=medians.get(space.untuned, math.inf),
        interval=interval,
        tried=tried,
        shipped=space.shipped,
        shipped_us=medians.get(space.shipped, math.inf),
        shipped_interval=shipped_interval,
        found=kept,
        found_us=medians.get(kept, math.inf),
    )
