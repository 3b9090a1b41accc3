"""Run a schedule again, exactly, knowing nothing of how it was found.

Every schedule passes here: each rank must end with all that the collective promises,
nothing may arrive twice or be counted twice, and nothing may be faster than the bound
(a schedule that is has lost a demand on the way; published ones have).
"""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass
from fractions import Fraction

from stretto.errors import PromiseError
from stretto.synth.bounds.bound import Bounds
from stretto.synth.network.model import microseconds
from stretto.synth.schedules.schedule import TimedMove, TimedSchedule

__all__ = ["Replay", "replay"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Replay:
    """What happened."""

    us: Fraction
    busy: tuple[Fraction, ...]
    """Microseconds that each link was occupied."""
    starts: tuple[Fraction, ...]
    """When each move began."""
    steps: int
    """The longest chain of moves."""


def replay(
    schedule: TimedSchedule,
    *,
    nbytes: int | None = None,
    bound: Bounds | None = None,
    alpha_occupies: bool = False,
) -> Replay:
    """Return the exact time of a schedule, or raise what is wrong with it.

    A move starts when its chunk is at the source, complete, and its links are free;
    links serve moves in program order. `alpha_occupies` lets latency block the link.
    What comes to a rank at a meeting is apart from what it sends there.
    """
    demand = schedule.demand
    network = demand.network
    size = Fraction(demand.nbytes if nbytes is None else nbytes)
    clock = _Clock(schedule, size)
    meetings = schedule.meetings()
    held = _Held(schedule, meetings)
    free = [0] * len(network.links)
    busy = [0] * len(network.links)
    ready: dict[tuple[int, int], tuple[int, int]] = {}
    met: dict[tuple[int, int], tuple[int, int]] = {}
    starts = []
    last, steps = 0, 0
    ways: set[tuple[int, int, tuple[int, ...]]] = set()
    for move in schedule.moves:
        if (way := (move.src, move.dst, move.links)) not in ways:
            _check_way(schedule, move)
            ways.add(way)
        source, target = (move.src, move.chunk), (move.dst, move.chunk)
        known, depth = ready.get(source, (0, 0))
        if not move.combine and source in met:
            known, depth = map(max, met[source], (known, depth))
        start = max(known, *(free[i] for i in move.links))
        starts.append(Fraction(start, clock.per_us))
        taken, alpha = clock.times(move)
        for i, ticks in zip(move.links, taken, strict=True):
            free[i] = start + ticks + (alpha if alpha_occupies else 0)
            busy[i] += ticks
        arrival = start + max(taken) + alpha
        held.move(move)
        into = met if (move.chunk, move.src, move.dst) in meetings else ready
        before, deep = into.get(target, (0, 0))
        into[target] = (max(before, arrival), max(deep, depth + 1))
        last, steps = max(last, arrival), max(steps, into[target][1])
    end = Fraction(last, clock.per_us)
    held.check()
    if bound is not None and end < bound.us(int(size)):
        raise PromiseError(
            f"{schedule.generator}: {float(end):.6g} us is below the bound of"
            f" {float(bound.us(int(size))):.6g} us; a demand or a link was lost"
        )
    used = tuple(Fraction(ticks, clock.per_us) for ticks in busy)
    return Replay(us=end, busy=used, starts=tuple(starts), steps=steps)


class _Clock:
    """Exact times in whole ticks, so fine that nothing is rounded."""

    def __init__(self, schedule: TimedSchedule, size: Fraction) -> None:
        links = schedule.demand.network.links
        shares = {c.number: c.share for c in schedule.demand.chunks()}
        rates = {k.rate for k in links}
        exact = {
            share: {rate: microseconds(size * share, rate) for rate in rates}
            for share in set(shares.values())
        }
        self.per_us = math.lcm(
            *(t.denominator for row in exact.values() for t in row.values()),
            *(k.alpha.denominator for k in links),
        )
        taken = {
            share: [int(row[k.rate] * self.per_us) for k in links]
            for share, row in exact.items()
        }
        self._taken = {number: taken[share] for number, share in shares.items()}
        """By chunk, how long it takes each link."""
        self._alpha = [int(k.alpha * self.per_us) for k in links]

    def times(self, move: TimedMove) -> tuple[list[int], int]:
        """Return how long a move occupies each of its links, and its latency."""
        taken = self._taken[move.chunk]
        return [taken[i] for i in move.links], sum(self._alpha[i] for i in move.links)


def _check_way(schedule: TimedSchedule, move: TimedMove) -> None:
    links = [schedule.demand.network.links[i] for i in move.links]
    nodes = [links[0].src, *(k.dst for k in links)]
    joined = all(a.dst == b.src for a, b in itertools.pairwise(links))
    inside = all(v >= schedule.demand.network.num_ranks for v in nodes[1:-1])
    if not joined or not inside or (nodes[0], nodes[-1]) != (move.src, move.dst):
        raise PromiseError(
            f"{schedule.generator}: chunk {move.chunk} goes {nodes};"
            f" want a way over switches from {move.src} to {move.dst}"
        )


class _Held:
    """Which contributions every rank holds of every chunk, as bit sets."""

    def __init__(
        self, schedule: TimedSchedule, meetings: frozenset[tuple[int, int, int]]
    ) -> None:
        self._schedule, self._meetings = schedule, meetings
        demand = schedule.demand
        self._met: dict[tuple[int, int], int] = {}
        """What came to a rank at meetings."""
        self._chunks = list(demand.chunks())
        self._everyone = sum(1 << r for r in demand.network.members)
        self._bits: dict[tuple[int, int], int] = {}
        for chunk in self._chunks:
            if demand.combines:
                for r in demand.network.members:
                    self._bits[r, chunk.number] = 1 << r
            else:
                self._bits[chunk.origin, chunk.number] = 1 << chunk.origin

    def move(self, move: TimedMove) -> None:
        """Pass a chunk on."""
        sent = self._bits.get((move.src, move.chunk), 0)
        have = self._bits.get((move.dst, move.chunk), 0)
        if not sent:
            raise self._wrong(move, "the source does not have it yet")
        if move.combine:
            met = self._met.get((move.dst, move.chunk), 0)
            if sent & (have | met):
                twice = _ranks(sent & (have | met))
                raise self._wrong(move, f"ranks {twice} count twice")
            apart = (move.chunk, move.src, move.dst) in self._meetings
            into, known = (self._met, met) if apart else (self._bits, have)
            into[move.dst, move.chunk] = sent | known
            return
        sent |= self._met.get((move.src, move.chunk), 0)
        if not self._schedule.demand.combines and have:
            raise self._wrong(move, "it is there already")
        if self._schedule.demand.combines and sent != self._everyone:
            raise self._wrong(move, f"only ranks {_ranks(sent)} are in the sum")
        self._bits[move.dst, move.chunk] = sent

    def check(self) -> None:
        """Raise unless every rank has what it was promised."""
        demand = self._schedule.demand
        for chunk in self._chunks:
            full = self._everyone if demand.combines else 1 << chunk.origin
            wanted = chunk.wanted
            if demand.collective in ("reduce_scatter", "reduce"):
                wanted = (chunk.origin,)
            for r in wanted:
                got = self._bits.get((r, chunk.number), 0)
                got |= self._met.get((r, chunk.number), 0)
                if got != full:
                    raise PromiseError(
                        f"{self._schedule.generator}: rank {r}, chunk {chunk.number}:"
                        f" holds contributions of {_ranks(got)},"
                        f" needs {_ranks(full)}; the schedule is incomplete"
                    )

    def _wrong(self, move: TimedMove, why: str) -> PromiseError:
        return PromiseError(
            f"{self._schedule.generator}: chunk {move.chunk} from {move.src} to"
            f" {move.dst} at {float(move.start):.6g} us: {why}"
        )


def _ranks(bits: int) -> list[int]:
    return [r for r in range(bits.bit_length()) if bits >> r & 1]
