"""Pipelined trees that repeat: every wave of pieces does what the wave before it did.

Each edge of each tree gets a place in the period, in which its links are free whatever
the wave. The edge whose transfer can start first is placed first, the one with the most
hops to go among equals; what comes late in a wave is done while the next one begins.
The program is a loop then, and looks the same however many pieces there are.
"""

from __future__ import annotations

import heapq
from collections import defaultdict
from collections.abc import Callable
from fractions import Fraction

from stretto.synth.direct.link_times import LinkQueue
from stretto.synth.direct.trees import Forest
from stretto.synth.network.symmetry import trivial
from stretto.synth.network.without_switches import go_on
from stretto.synth.schedules.schedule import Demand, Move, Schedule, Wave

__all__ = ["book_waves"]

_SLACK = (Fraction(1), Fraction(102, 100))
"""By how much the period may exceed what the fullest link needs, tried in turn."""


class _Wheel:
    """When every link is taken, in a time that begins anew with every period."""

    def __init__(
        self, takes: dict[int, int], load: dict[int, int], period: int
    ) -> None:
        self._takes, self._period = takes, period
        self._tight = {e for e, n in load.items() if (n + 1) * takes[e] > period}
        self._phase: dict[int, int] = {}
        self._taken: dict[int, list[int]] = defaultdict(list)

    def soonest(self, path: tuple[int, ...], ready: int) -> int | None:
        """Return when all links of a path are free, or None when they never are."""
        when, before = ready, -1
        while when != before:
            before = when
            for e in path:
                when = self._free(e, when)
            if when >= ready + 2 * self._period:
                return None
        return when

    def take(self, path: tuple[int, ...], when: int) -> None:
        """Take the links of a path in every period."""
        for e in path:
            self._taken[e].append(when % self._period)
            self._phase.setdefault(e, when % self._takes[e])

    def _free(self, e: int, when: int) -> int:
        """Return when a link is free next; a full one serves without a pause."""
        takes, period = self._takes[e], self._period
        never = when + 2 * period
        while when < never:
            if e in self._tight and e in self._phase:
                origin = self._taken[e][0]
                since = (when - origin) % period
                turn = -(-since // takes)
                when += turn * takes - since
                if (turn + 1) * takes > period:
                    when += period - turn * takes
            clash = [
                (t - when) % period
                for t in self._taken[e]
                if (t - when) % period < takes or (when - t) % period < takes
            ]
            if not clash:
                return when
            when += min(((c + takes) % period) or takes for c in clash)
        return never


def book_waves(
    forest: Forest,
    demand: Demand,
    *,
    pieces: int,
    check: Callable[[], None] = go_on,
) -> Schedule | None:
    """Return the schedule that sends `pieces` chunks down every tree, wave by wave.

    The demand's split must be trees x pieces. None: the links cannot be shared so.
    `check` is called all the time and may raise, to give up.
    """
    network, clock = forest.network, LinkQueue(demand)
    load: dict[int, int] = defaultdict(int)
    for _, _, ways in forest.edges:
        for path in ways:
            for e in path:
                load[e] += 1
    takes = {e: clock.takes(e) for e in load}
    fullest = max(load[e] * takes[e] for e in load)
    for slack in _SLACK:
        period = int(fullest * slack)
        starts = _placed(forest, clock, _Wheel(takes, load, period), check)
        if starts is not None:
            break
    else:
        return None
    members = {r: i for i, r in enumerate(network.members)}
    rooted = demand.collective == "broadcast"
    moves, waves = [], []
    for (tree, path), start in starts.items():
        root, which, _ = forest.edges[tree]
        base = (0 if rooted else members[root] * demand.split) + which * pieces
        src, dst = network.links[path[0]].src, network.links[path[-1]].dst
        made = [
            Move(clock.us(start + i * period), base + i, src, dst, path)
            for i in range(pieces)
        ]
        moves += made
        waves.append(Wave(made[0], tuple(range(base, base + pieces))))
    ordered = tuple(sorted(moves, key=lambda m: (m.start, m.chunk, m.src, m.dst)))
    return Schedule(
        demand=demand,
        moves=ordered,
        generator=f"trees k={forest.trees} in waves",
        symmetry=trivial(network),
        folded=ordered,
        waves=tuple(waves),
        pace=clock.us(period),
    )


def _placed(
    forest: Forest, clock: LinkQueue, wheel: _Wheel, check: Callable[[], None]
) -> dict[tuple[int, tuple[int, ...]], int] | None:
    """Return when the first piece of every tree takes each of its edges."""
    links = forest.network.links
    below: dict[tuple[int, int], list[tuple[int, ...]]] = defaultdict(list)
    height: dict[tuple[int, int], int] = defaultdict(int)
    heap: list[tuple[int, int, int, tuple[int, ...]]] = []
    for tree, (_, _, ways) in enumerate(forest.edges):
        for path in reversed(ways):
            src, dst = links[path[0]].src, links[path[-1]].dst
            below[tree, src].append(path)
            height[tree, src] = max(height[tree, src], height[tree, dst] + 1)

    def offer(tree: int, node: int, ready: int) -> None:
        for path in below.get((tree, node), ()):
            deep = height[tree, links[path[-1]].dst]
            heapq.heappush(heap, (ready, -deep, tree, path))

    for tree, (root, _, _) in enumerate(forest.edges):
        offer(tree, root, 0)
    starts: dict[tuple[int, tuple[int, ...]], int] = {}
    while heap:
        check()
        ready, deep, tree, path = heapq.heappop(heap)
        when = wheel.soonest(path, ready)
        if when is None:
            return None
        if when > ready and heap and when > heap[0][0]:
            heapq.heappush(heap, (when, deep, tree, path))
            continue  # others may be first
        wheel.take(path, when)
        starts[tree, path] = when
        offer(tree, links[path[-1]].dst, when + clock.delay(path))
    return starts
