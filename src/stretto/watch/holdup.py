"""Which ranks hold the others up, and for how long: the slow ones, one or many.

A rank is slow when it usually comes later than the others do, by more than they differ
among themselves. So eight ranks of one slow host are found as one rank is. The first
call of a kind is warm-up; of the rest the few longest of each rank are left out, so one
late start does not hide a little of every step.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from stretto.watch.columns import dense_ids
from stretto.watch.lateness import Late, Meetings, arrivals

_LEAST_SHARE = 0.01
"""Of the recording's time, that the others must have lost for anybody to be slow."""
_SPREADS = 6.0
_FEW = 10


@dataclass(frozen=True, slots=True, kw_only=True)
class HoldUp:
    """How slow ranks held the others up."""

    ranks: tuple[int, ...] = ()
    """The slow ones, the slowest first; none: nobody stands out."""
    meetings: int = 0
    """Calls that several ranks made together, but for warm-up."""
    late: int = 0
    """In how many of these a slow rank came last, by more than a tenth of usual."""
    usual_us: float = 0.0
    """How long the others then waited for it: the median."""
    total_us: float = 0.0
    share: float = 0.0
    """Of the recording's time."""
    once_us: float = 0.0
    """The longest that anybody kept the others, once, beside that."""
    once_rank: int = -1


def holdup(calls: NDArray[Any]) -> HoldUp:
    """Return who held the others up in these calls, and for how long."""
    calls = calls[arrivals(calls) > 0]
    if not len(calls):
        return HoldUp()
    meetings = Meetings(calls)
    counts, warm = meetings.sizes > 1, meetings.warm(calls)
    if (counts & warm).any():
        counts &= warm
    if not counts.any():
        return HoldUp()
    chosen = counts[meetings.of_row]
    ranks, rank = dense_ids(calls["rank"][meetings.order])
    after = (meetings.came - meetings.first[meetings.of_row])[chosen]
    span = int(max(calls["end"].max(), meetings.last.max()) - meetings.first.min())
    late = _trimmed(after, rank[chosen], len(ranks))
    slow = _outliers(late)
    last = meetings.last_rows()
    kept = meetings.kept(last)
    once = int(np.argmax(np.where(counts, kept, -1)))
    found = HoldUp(
        meetings=int(counts.sum()),
        once_us=float(kept[once]) / 1e3,
        once_rank=int(ranks[rank[last[once]]]),
    )
    held = _held(meetings, slow[rank])[counts]
    total, usual, often = _sums(held)
    if not slow.any() or total < _LEAST_SHARE * span:
        return found
    order = np.argsort(-late[slow], kind="stable")
    return HoldUp(
        ranks=tuple(int(r) for r in ranks[slow][order]),
        meetings=found.meetings,
        late=often,
        usual_us=usual / 1e3,
        total_us=total / 1e3,
        share=total / max(1, span),
        once_us=found.once_us,
        once_rank=found.once_rank,
    )


def slow_first(late: list[Late], slow: HoldUp) -> list[Late]:
    """Return ranks with those who hold the others up first, then the others as before.

    One late start may have cost more than a little of every step; who is named first
    is the one that the verdict names.
    """
    place = {rank: at for at, rank in enumerate(slow.ranks)}
    return sorted(late, key=lambda one: place.get(one.rank, len(place)))


def _trimmed(
    after: NDArray[np.int64], rank: NDArray[np.int64], many: int
) -> NDArray[np.float64]:
    """Return how late each rank is on average, without its few longest."""
    order = np.lexsort((after, rank))
    sums = np.concatenate([[0.0], np.cumsum(after[order], dtype=np.float64)])
    count = np.bincount(rank, minlength=many)
    begin = np.cumsum(count) - count
    kept = np.maximum(count - _left_out(count), 1)
    kept = np.minimum(kept, count)
    found: NDArray[np.float64] = sums[begin + kept] - sums[begin]
    found /= np.maximum(kept, 1)
    return found


def _left_out(count: NDArray[np.int64]) -> NDArray[np.int64]:
    return np.where(count >= _FEW, np.maximum(1, count // 200), 0)


def _outliers(late: NDArray[np.float64]) -> NDArray[np.bool_]:
    """Return which are far above the usual: at most half of all can be."""
    if len(late) < 2:
        return np.zeros(len(late), bool)
    middle = (len(late) - 1) // 2
    usual = float(np.sort(late)[middle])
    spread = float(np.sort(np.abs(late - usual))[middle])
    worst = float(late.max())
    above = np.maximum(_SPREADS * spread, 0.1 * (worst - usual))
    return np.asarray((late - usual > above) & (late > 1.5 * usual))


def _held(meetings: Meetings, slow: NDArray[np.bool_]) -> NDArray[np.int64]:
    """Return, by meeting, how much later its last slow rank came than its others."""
    never = np.iinfo(np.int64).min // 4
    came = meetings.came
    lates = np.maximum.reduceat(np.where(slow, came, never), meetings.firsts)
    others = np.maximum.reduceat(np.where(slow, never, came), meetings.firsts)
    both = (lates > never) & (others > never)
    return np.where(both, np.maximum(lates - others, 0), 0)


def _sums(held: NDArray[np.int64]) -> tuple[float, float, int]:
    """Return the sum without the few longest, the usual one, and how many there are."""
    left = int(_left_out(np.array([len(held)]))[0])
    kept = np.sort(held)[: len(held) - left]
    some = kept[kept > 0]
    if not len(some):
        return 0.0, 0.0, 0
    # calls that come one after another in a step are late in the first of them
    big = some[some >= 0.1 * np.quantile(some, 0.9)]
    often = int((held > 0.1 * np.median(big)).sum())
    return float(kept.sum()), float(np.median(big)), often
