"""How long each link can serve what must cross it, and when that is too short.

Nothing starts on a link before data have come to who sends over it, and what a link
carries has a way to go when it has left. Both may be of different ways: of all that
passes a link the least counts, in front of it and behind it, each by itself. So of a
time T each link has T less what it is closed, and all that must pass has to fit.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Collection, Iterable
from fractions import Fraction
from typing import TypeAlias

from stretto.synth.network.model import Network

__all__ = ["Times", "Ways", "Window", "filled", "merged", "paid_windows"]

Window: TypeAlias = tuple[Fraction, Fraction]
"""GB/s, and the microseconds that they are not there."""


Times: TypeAlias = dict[int, int]
"""Of nodes, in ticks."""


class Ways:
    """Least latencies on the ways of one network."""

    def __init__(self, network: Network) -> None:
        self._network = network
        self._unit = math.lcm(*(k.alpha.denominator for k in network.links))
        self._alpha = [int(k.alpha * self._unit) for k in network.links]
        self._out = network.leaving()
        self._in: list[list[int]] = [[] for _ in range(network.num_nodes)]
        for e, k in enumerate(network.links):
            self._in[k.dst].append(e)

    def farthest(
        self, ranks: Collection[int], among: Iterable[int], *, backward: bool = False
    ) -> int:
        """Return who of some is reached last from these ranks, or reaches them last."""
        away = self._away(dict.fromkeys(ranks, 0), backward=backward)
        return max(among, key=lambda v: (away.get(v, -1), v))

    def come(
        self, sources: Collection[int], inside: frozenset[int] | None = None
    ) -> Times:
        """Return when ranks can first send on what some have."""
        return self._ranks(self._away(dict.fromkeys(sources, 0), within=inside))

    def away_us(self, rank: int) -> dict[int, Fraction]:
        """Return how far the others are from a rank, us."""
        away = self._ranks(self._away({rank: 0}))
        return {v: Fraction(t, self._unit) for v, t in away.items()}

    def left(self, targets: Collection[int]) -> Times:
        """Return what is left, at least, from ranks to some."""
        return self._ranks(self._away(dict.fromkeys(targets, 0), backward=True))

    def passed_on(self, ranks: Collection[int], *, backward: bool = False) -> Times:
        """Return when others than who has it can send on, or what others have left."""
        found: Times = {}
        for u in ranks:
            away = self._away({u: 0}, backward=backward)
            for v, late in self._ranks(away).items():
                if v != u:
                    found[v] = min(late, found.get(v, late))
        return found

    def closed(
        self, first: Times, last: Times, inside: frozenset[int] | None = None
    ) -> dict[int, Fraction]:
        """Return how long links are closed that lead from some ranks to others.

        `first` is when ranks begin to send, `last` what is left when ranks have heard.
        With `inside` the links leave that set of nodes, and nothing has been outside.
        """
        start = self._away(first, within=inside, switches=True, free=True)
        before = self._away(dict.fromkeys(first, 0), within=inside, switches=True)
        after = self._away(last, backward=True, switches=True)
        found = {}
        for e, k in enumerate(self._network.links):
            crosses = inside is None or (k.src in inside and k.dst not in inside)
            if crosses and k.src in start and k.dst in after:
                late = start[k.src] + before[k.src] + self._alpha[e] + after[k.dst]
                found[e] = Fraction(late, self._unit)
        return found

    def straight(
        self,
        rank: int,
        edge: Collection[int],
        inside: frozenset[int],
        *,
        backward: bool = False,
    ) -> bool:
        """Return whether a hop over one of these links may begin with a rank, or end.

        They lead out of a set: on its way to them a hop does not leave that.
        """
        reached = self._away(
            {rank: 0},
            backward=backward,
            within=None if backward else inside,
            switches=True,
        )
        links = (self._network.links[e] for e in edge)
        return any((k.dst if backward else k.src) in reached for k in links)

    def _ranks(self, away: Times) -> Times:
        return {v: t for v, t in away.items() if v < self._network.num_ranks}

    def _away(
        self,
        start: Times,
        *,
        backward: bool = False,
        within: frozenset[int] | None = None,
        switches: bool = False,
        free: bool = False,
    ) -> Times:
        """Return the least sum of latencies from nodes that begin with some, to others.

        With `switches` ways go on over switches only; `free`: links count nothing.
        """
        links, n = self._network.links, self._network.num_ranks
        done: dict[int, int] = {}
        heap = [(t, v) for v, t in start.items()]
        heapq.heapify(heap)
        while heap:
            far, node = heapq.heappop(heap)
            if node in done:
                continue
            done[node] = far
            for e in self._in[node] if backward else self._out[node]:
                to = links[e].src if backward else links[e].dst
                if to in done or (switches and to < n):
                    continue
                if within is None or (to in within and node in within):
                    heapq.heappush(heap, (far + (0 if free else self._alpha[e]), to))
        return done


def merged(windows: Iterable[Window]) -> tuple[Window, ...]:
    """Return windows with those of one length in one, the longest first."""
    rates: dict[Fraction, Fraction] = {}
    for rate, late in windows:
        rates[late] = rates.get(late, Fraction(0)) + rate
    return tuple((rate, late) for late, rate in sorted(rates.items()) if rate)


def paid_windows(
    paid: Iterable[Fraction], closed: dict[int, Fraction], least: Fraction = Fraction(0)
) -> tuple[Window, ...]:
    """Return the windows of links, merged; `paid` is what each counts, in GB/s.

    Links that nothing can pass, such as those of a switch that nothing enters, are
    never open. None is closed for less than `least`.
    """
    return merged(
        (rate, max(least, closed[e]))
        for e, rate in enumerate(paid)
        if rate and e in closed
    )


def filled(volume: Fraction, windows: tuple[Window, ...]) -> Fraction:
    """Return the least time in which so much passes: GB/s times microseconds."""
    rates = lost = us = Fraction(0)
    for rate, late in windows:
        if rates and us <= late:
            break
        rates += rate
        lost += rate * late
        us = (volume + lost) / rates
    return us
