"""Jobs for the clock: what every transfer takes of its links, and what waits for it.

All times are whole ticks, so that nothing is rounded, and all of it is flat arrays, so
that it can be planned by compiled code.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from fractions import Fraction
from itertools import accumulate
from typing import Any

import numpy as np

from stretto.synth.network.model import Network, microseconds

__all__ = ["JobArrays", "JobTable", "PlannedTransfer"]

_ROUGH = 1 << 20
"""Ticks for the longest transfer: starts are planned in them, replay is exact."""


@dataclass(frozen=True, slots=True)
class PlannedTransfer:
    """A transfer of `share` of the vector over links, after other jobs."""

    links: tuple[int, ...]
    share: Fraction
    after: tuple[int, ...]
    """Numbers of jobs that must have arrived at the source."""
    wave: float = 0.0
    """Which part of its owner's pieces go before its own."""


@dataclass(slots=True)
class JobArrays:
    """Jobs and ways as arrays: the lists of x go from at[x] to at[x + 1]."""

    way: Any
    """Which set of links, by job; jobs of one wait in one queue."""
    way_at: Any
    way_links: Any
    take_at: Any
    takes: Any
    """Ticks that a job takes of each of its links."""
    delay: Any
    """Ticks from a job's start to its arrival."""
    behind_at: Any
    behind: Any
    waits: Any
    """How many jobs must have arrived before one starts."""
    load: Any

    def turned(self) -> JobArrays:
        """Return the jobs with time running backwards."""
        before = np.repeat(np.arange(len(self.waits)), np.diff(self.behind_at))
        order = np.argsort(self.behind, kind="stable")
        return replace(
            self,
            behind=before[order],
            behind_at=np.concatenate(([0], np.cumsum(self.waits))),
            waits=np.diff(self.behind_at),
        )

    def lists(self) -> JobArrays:
        """Return the same as lists: uncompiled code reads them faster."""
        return JobArrays(*(getattr(self, f.name).tolist() for f in fields(self)))


@dataclass(slots=True)
class JobTable:
    """Jobs, and what they take of their links."""

    flat: JobArrays
    wave: Any
    us_per_tick: Fraction

    @classmethod
    def of(
        cls, network: Network, nbytes: int, jobs: Sequence[PlannedTransfer]
    ) -> JobTable:
        """Return the table of some jobs."""
        numbers: dict[tuple[tuple[int, ...], Fraction], int] = {}
        kind = [numbers.setdefault((j.links, j.share), len(numbers)) for j in jobs]
        rates = [min(network.links[e].rate for e in links) for links, _ in numbers]
        longest = max(
            microseconds(nbytes * share, rate)
            for (_, share), rate in zip(numbers, rates, strict=True)
        )
        tick = longest / _ROUGH
        ways: dict[tuple[int, ...], int] = {}
        takes: list[int] = []
        times, of_kind = [], []
        for links, share in numbers:
            mine = [
                math.ceil(microseconds(nbytes * share, network.links[e].rate) / tick)
                for e in links
            ]
            alpha = sum((network.links[e].alpha for e in links), Fraction(0))
            late = max(mine) + math.ceil(alpha / tick)
            of_kind.append((ways.setdefault(links, len(ways)), len(takes), late))
            times.append(mine)
            takes += mine
        way, take_at, delay = zip(*(of_kind[k] for k in kind), strict=True)
        count = len(jobs)
        after = [i for i, j in enumerate(jobs) for _ in j.after]
        before = np.array([b for j in jobs for b in j.after], dtype=np.int64)
        order = np.argsort(before, kind="stable")
        load = np.zeros(len(network.links), dtype=np.int64)
        for (links, _), mine, many in zip(
            numbers, times, np.bincount(kind).tolist(), strict=True
        ):
            for e, t in zip(links, mine, strict=True):
                load[e] += many * t
        flat = JobArrays(
            way=_whole(way),
            way_at=_whole([0, *accumulate(len(w) for w in ways)]),
            way_links=_whole([e for w in ways for e in w]),
            take_at=_whole(take_at),
            takes=_whole(takes),
            delay=_whole(delay),
            behind_at=_whole([0, *np.cumsum(np.bincount(before, minlength=count))]),
            behind=_whole(after)[order],
            waits=_whole([len(j.after) for j in jobs]),
            load=load,
        )
        return cls(flat, np.array([j.wave for j in jobs]), tick)


def _whole(values: Sequence[int]) -> Any:
    return np.array(values, dtype=np.int64)
