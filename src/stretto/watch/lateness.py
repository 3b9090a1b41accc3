"""Who came late to meetings, and for how long that kept the others: the one analysis.

A call comes to its meeting when it begins: on a GPU when its stream has come to it,
since a host may ask for it long before. Where nobody noted that, when it was asked for.
Legend: m a meeting: the calls of one number of a communicator; r a rank.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from stretto.watch.columns import dense_ids, nearest_rank, ordered, places_by


@dataclass(frozen=True, slots=True, kw_only=True)
class Late:
    """How late a rank came to the meetings that it had with others, but for warm-up."""

    rank: int
    meetings: int
    last: int
    """How often it was the last, and kept the others for more than its share."""
    mean_us: float
    """By how much it came after the first, on average."""
    p50_us: float
    p99_us: float
    most_us: float
    kept_us: float
    """How long others would not have waited without it: what it was later than the
    last but one, summed."""


def arrivals(calls: NDArray[Any]) -> NDArray[np.int64]:
    """Return when each call came to its meeting; 0: nobody noted it."""
    start = calls["start"]
    if start.all():
        return np.ascontiguousarray(start)
    return np.where(start > 0, start, calls["enqueue"])


class Meetings:
    """Calls sorted by communicator and number: those of one meeting side by side."""

    def __init__(self, calls: NDArray[Any]) -> None:
        key = calls["comm"].astype(np.int64) << 40
        key |= calls["seq"]
        self.order = np.argsort(key, kind="stable")
        key = key[self.order]
        first = np.ones(len(key), bool)
        np.not_equal(key[1:], key[:-1], out=first[1:])
        del key
        self.firsts = np.flatnonzero(first)
        self.sizes = np.diff(self.firsts, append=len(first))
        self.of_row = np.cumsum(first, dtype=np.int32)
        self.of_row -= 1
        self.came = arrivals(calls)[self.order]
        if len(self.firsts):
            self.last = np.maximum.reduceat(self.came, self.firsts)
            self.first = np.minimum.reduceat(self.came, self.firsts)
        else:
            self.last = self.first = np.zeros(0, np.int64)

    def waited(self, calls: NDArray[Any]) -> NDArray[np.int64]:
        """Return, by call, how much of it was before the last had come."""
        waited = np.empty(len(calls), np.int64)
        waited[self.order] = self.last[self.of_row] - self.came
        length = calls["end"] - calls["start"]
        return np.clip(waited, 0, length, out=waited)

    def last_rows(self) -> NDArray[np.int64]:
        """Return, by meeting, the row (in its order) that came last."""
        rows = np.flatnonzero(self.came == self.last[self.of_row])
        found = np.empty(len(self.firsts), np.int64)
        found[self.of_row[rows]] = rows
        return found

    def kept(self, last: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return, by meeting, how much later its last came than the last but one."""
        came, several = self.came.copy(), self.sizes > 1
        came[last[several]] = np.iinfo(np.int64).min
        second = np.maximum.reduceat(came, self.firsts)
        return np.where(several, self.last - second, 0)

    def warm(self, calls: NDArray[Any]) -> NDArray[np.bool_]:
        """Return which meetings are not the first of a kind in their communicator."""
        rows = self.order[self.firsts]
        kinds = calls["comm"][rows].astype(np.int64) << 32
        kinds |= calls["kind"][rows]
        warm = np.ones(len(rows), bool)
        warm[np.unique(kinds, return_index=True)[1]] = False
        return warm


def lateness(calls: NDArray[Any], meetings: Meetings | None = None) -> list[Late]:
    """Return how late ranks came, those first who kept others longest.

    The first call of a kind in a communicator is warm-up and does not count, unless
    there is nothing else.
    """
    if meetings is None:
        calls = calls[arrivals(calls) > 0]
        meetings = Meetings(calls)
    if not len(calls):
        return []
    counts, warm = meetings.sizes > 1, meetings.warm(calls)
    if (counts & warm).any():
        counts &= warm
    chosen = counts[meetings.of_row]
    ranks, rank = dense_ids(calls["rank"][meetings.order])
    after = (meetings.came - meetings.first[meetings.of_row])[chosen]
    last = meetings.last_rows()
    kept = meetings.kept(last)[counts]
    last = last[counts]
    many = len(ranks)
    was_last = np.bincount(rank[last], minlength=many)
    cost = np.bincount(rank[last], weights=kept.astype(float), minlength=many)
    found = []
    for r, mine in enumerate(places_by(rank[chosen], many)):
        if not len(mine):
            continue
        late = after[mine]
        wanted = [nearest_rank(share, len(late)) for share in (0.5, 0.99, 1.0)]
        p50, p99, most = ordered(late, *wanted)
        found.append(
            Late(
                rank=int(ranks[r]),
                meetings=len(late),
                last=int(was_last[r]),
                mean_us=float(late.mean() / 1e3),
                p50_us=p50 / 1e3,
                p99_us=p99 / 1e3,
                most_us=most / 1e3,
                kept_us=float(cost[r] / 1e3),
            )
        )
    return sorted(found, key=lambda one: (-one.kept_us, -one.mean_us, one.rank))


def by_rank(ranks: NDArray[Any]) -> Iterator[tuple[int, NDArray[np.int64]]]:
    """Yield ranks, and the rows that each has."""
    distinct, places = dense_ids(ranks)
    yield from zip(distinct.tolist(), places_by(places, len(distinct)), strict=False)
