"""The (chunks, steps, rounds) frontier of a small box, proved by CP-SAT.

S synchronous steps; step s lasts r_s rounds, R in all; in a round a link of
multiplicity b carries b chunks. With C chunks a part of m bytes, time is S alpha +
(R/C) m beta: S is the axis of latency, R/C that of bandwidth. Collectives that
combine are the reversal of those that copy.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

from stretto.errors import TopologyError
from stretto.synth.bounds.bound import Bounds
from stretto.synth.exact.timed_flow import flooded, most_chunks, shapes
from stretto.synth.network.model import Network, SwitchPath
from stretto.synth.schedules.schedule import DataChunk, Demand, TimedMove, TimedSchedule
from stretto.synth.solvers import cp_model, solved

__all__ = ["Point", "fewest_flooded", "fewest_rounds", "frontier", "rounds_bound"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Point:
    """One schedule of the frontier."""

    chunks: int
    steps: int
    rounds: int
    proved: bool
    """No schedule with these chunks and steps has fewer rounds."""
    schedule: TimedSchedule

    @property
    def ratio(self) -> Fraction:
        """Return rounds per chunk."""
        return Fraction(self.rounds, self.chunks)


def rounds_bound(bound: Bounds, network: Network) -> Fraction:
    """Return the least rounds per chunk that the bandwidth bound allows.

    Rounds are of the slowest link: who cannot count in them is refused.
    """
    if switches := network.num_nodes - network.num_ranks:
        raise TopologyError(
            f"{network.name}: steps and rounds are counted on links between ranks;"
            f" got {switches} switches; want a machine without"
        )
    unit = min(k.rate for k in network.links)
    for link in network.links:
        if (link.rate / unit).denominator != 1:
            raise TopologyError(
                f"{network.name}: rates {link.rate} and {unit}; want every rate a whole"
                " multiple of the slowest"
            )
    return len(network.members) * unit / bound.algbw


def frontier(
    collective: str,
    network: Network,
    bound: Bounds,
    *,
    root: int = 0,
    chunks: Iterable[int] = range(1, 7),
    most_steps: int | None = None,
    seconds: float = 60.0,
    left: Callable[[], float] = lambda: math.inf,
) -> Iterator[Point]:
    """Yield schedules, fewest steps first, until one meets the bandwidth bound.

    Among the chunk counts tried at a number of steps only improvements are kept. Chunks
    are counted per part; of broadcast and reduce, per vector. `left` says how many
    seconds of the clock there are for all of it.
    """
    whole = collective in ("broadcast", "reduce")
    least = rounds_bound(bound, network) / (len(network.members) if whole else 1)
    best: Fraction | None = None
    for steps in range(bound.steps, (most_steps or bound.steps + 6) + 1):
        for count in chunks:
            floor = max(steps, math.ceil(least * count))
            if best is not None and Fraction(floor, count) >= best:
                continue
            if (until := left()) <= 0:
                return
            demand = Demand(
                collective=collective,
                network=network,
                nbytes=1,
                split=1 if whole else count,
                pieces=count if whole else 0,
                root=root,
            )
            if collective == "broadcast":
                point = fewest_flooded(demand, steps, floor, best=best)
            else:
                point = fewest_rounds(
                    demand, steps, floor, best=best, seconds=seconds, until=until
                )
            if point is None or (best is not None and point.ratio >= best):
                continue
            best = point.ratio
            yield point
            if best == least:
                return


def fewest_rounds(
    demand: Demand,
    steps: int,
    floor: int,
    *,
    best: Fraction | None = None,
    seconds: float = 60.0,
    until: float = math.inf,
) -> Point | None:
    """Return the schedule with the fewest rounds, or None when none improves `best`."""
    model = _Steps(demand, steps, floor)
    chunks = demand.pieces or demand.split
    if best is not None:
        limit = math.ceil(best * chunks) - 1
        model.cp.add(model.total <= limit)
    found = model.solve(seconds, until)
    if found is None:
        return None
    moves, rounds, proved = found
    return Point(
        chunks=chunks,
        steps=steps,
        rounds=rounds,
        proved=proved,
        schedule=TimedSchedule(demand=demand, moves=moves, generator="steps"),
    )


def fewest_flooded(
    demand: Demand, steps: int, floor: int, *, best: Fraction | None = None
) -> Point | None:
    """Return the broadcast with the fewest rounds; flows prove that fewer do not do.

    It is proved unless fewer rounds have flow enough but no trees were found.
    """
    chunks = demand.pieces
    most = floor + chunks if best is None else math.ceil(best * chunks) - 1
    proved = True
    for rounds in range(floor, most + 1):
        enough = [
            shape
            for shape in shapes(rounds, steps)
            if most_chunks(demand.network, demand.root, shape) >= chunks
        ]
        for shape in enough[:4]:
            found = flooded(demand.network, demand.root, shape, chunks)
            if found is not None:
                schedule = TimedSchedule(demand=demand, moves=found, generator="steps")
                return Point(
                    chunks=chunks,
                    steps=steps,
                    rounds=rounds,
                    proved=proved,
                    schedule=schedule,
                )
        proved = proved and not enough
    return None


class _Steps:
    """The model: who has what after every step, and what is sent in it."""

    def __init__(self, demand: Demand, steps: int, floor: int) -> None:
        network = demand.network
        self.cp: Any = cp_model().CpModel()
        self.hops: list[SwitchPath] = [
            h for r in range(network.num_ranks) for h in network.hops(r)
        ]
        self.sent: dict[tuple[int, int, int], Any] = {}
        self._steps = steps
        self._network = network
        most = floor + 4 * steps + 2 * demand.split
        self.rounds = [self.cp.new_int_var(1, most, "") for _ in range(steps)]
        self.total = self.cp.new_int_var(floor, most * steps, "rounds")
        self.cp.add(self.total == sum(self.rounds))
        away = [_steps_from(network, r) for r in range(network.num_ranks)]
        for c in demand.chunks():
            self._chunk(c, away, single=demand.collective in _SINGLE)
        self._capacity()
        self.cp.minimize(self.total)

    def solve(
        self, seconds: float, until: float
    ) -> tuple[tuple[TimedMove, ...], int, bool] | None:
        """Return the moves, their rounds and whether fewer are impossible."""
        solver = cp_model().CpSolver()
        solver.parameters.num_workers = 1
        solver.parameters.interleave_search = True
        solver.parameters.max_deterministic_time = seconds
        if until < math.inf:
            solver.parameters.max_time_in_seconds = until
        status = solved(solver, self.cp)
        names = cp_model()
        if status not in (names.OPTIMAL, names.FEASIBLE):
            return None
        moves = tuple(
            TimedMove(Fraction(s), c, h.src, h.dst, h.links)
            for (c, i, s), sent in sorted(self.sent.items(), key=lambda x: x[0][2])
            if solver.value(sent)
            for h in (self.hops[i],)
        )
        return moves, round(solver.objective_value), status == names.OPTIMAL

    def _chunk(self, c: DataChunk, away: list[list[int]], *, single: bool) -> None:
        """Add one chunk: it spreads from its origin along what is sent."""
        n = self._network.num_ranks
        have: dict[tuple[int, int], Any] = {}
        needed = [min(away[v][w] for w in c.wanted) for v in range(n)]
        for s in range(self._steps + 1):
            for v in range(n):
                early = s < away[c.origin][v]
                certain = v == c.origin or (s == self._steps and v in c.wanted)
                have[v, s] = 0 if early else 1 if certain else self.cp.new_bool_var("")
        for s in range(self._steps):
            into: dict[int, list[Any]] = {v: [] for v in range(n)}
            for i, h in enumerate(self.hops):
                reachable = away[c.origin][h.src] <= s and h.dst != c.origin
                useful = needed[h.dst] <= self._steps - s - 1
                stays = single and h.src in c.wanted
                if not reachable or not useful or stays:
                    continue
                x = self.cp.new_bool_var("")
                self.sent[c.number, i, s] = x
                into[h.dst].append(x)
                self.cp.add_implication(x, have[h.src, s])
            for v in range(n):
                self.cp.add(have[v, s + 1] == have[v, s] + sum(into[v]))

    def _capacity(self) -> None:
        unit = min(k.rate for k in self._network.links)
        lists: dict[tuple[int, int], list[Any]] = {}
        for (_, i, s), x in self.sent.items():
            lists.setdefault((self.hops[i].links[0], s), []).append(x)
        ports: dict[tuple[bool, int], list[Any]] = {}
        for (e, s), xs in lists.items():
            link = self._network.links[e]
            self.cp.add(sum(xs) <= int(link.rate / unit) * self.rounds[s])
            ports.setdefault((True, link.dst), []).extend(xs)
            ports.setdefault((False, link.src), []).extend(xs)
        for (into, v), xs in ports.items():  # implied, and a much tighter relaxation
            rate = sum(
                int(k.rate / unit)
                for k in self._network.links
                if (k.dst if into else k.src) == v
            )
            self.cp.add(sum(xs) <= rate * self.total)


_SINGLE = ("all_to_all", "gather", "scatter")


def _steps_from(network: Network, rank: int) -> list[int]:
    far = {rank: 0}
    queue = [rank]
    for v in queue:
        for k in network.links:
            if k.src == v and k.dst not in far:
                far[k.dst] = far[v] + 1
                queue.append(k.dst)
    return [far.get(v, network.num_ranks) for v in range(network.num_ranks)]
