"""all_reduce in one model: sums to their owners and back, timed together.

For every chunk one tree carries contributions to its owner and another carries the sum
to everybody. Both are chosen and timed at once, so a link that the sums leave idle
serves what is already complete. The rest is as in `joint.py`: optional intervals, one
list for every orbit of links, exact among symmetric schedules.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Any

from stretto.synth.bounds.bound import Bounds
from stretto.synth.budget import Budget
from stretto.synth.exact.joint import SolverResult, solver_of
from stretto.synth.network.model import SwitchPath, microseconds
from stretto.synth.network.symmetry import Symmetry
from stretto.synth.schedules.replay import replay
from stretto.synth.schedules.schedule import DataChunk, Demand, TimedMove, TimedSchedule
from stretto.synth.schedules.unfold import representatives, unfold
from stretto.synth.solvers import cp_model, solved

__all__ = ["solve_reduce"]

Allowed = Callable[[DataChunk, SwitchPath, bool], bool]
"""Whether a chunk may take a hop, on its way to be summed or not."""


def solve_reduce(
    demand: Demand,
    symmetry: Symmetry,
    bound: Bounds,
    *,
    budget: Budget,
    hint: TimedSchedule,
    hops: list[SwitchPath],
    allowed: Allowed | None = None,
) -> SolverResult:
    """Return the best symmetric all_reduce found within the budget."""
    kept = set(representatives(demand, symmetry))
    chunks = {c.number: c for c in demand.chunks() if c.number in kept}
    model = _Model(demand, symmetry, chunks, hops, hint)
    for c in chunks.values():
        model.add(c, allowed)
    model.close(bound)
    model.follow(hint)
    solver = solver_of(budget)
    names = cp_model()
    status = solved(solver, model.cp)
    if status not in (names.OPTIMAL, names.FEASIBLE):
        return SolverResult(schedule=None, proved=status == names.INFEASIBLE)
    moves = [
        TimedMove(
            solver.value(model.start[key]) * model.unit,
            c,
            hops[i].src,
            hops[i].dst,
            hops[i].links,
            combine,
        )
        for key, sent in model.sent.items()
        if solver.value(sent)
        for c, i, combine in (key,)
    ]
    found = unfold(demand, moves, symmetry, "joint all_reduce")
    return SolverResult(schedule=found, proved=status == names.OPTIMAL)


_Key = tuple[int, int, bool]
"""Chunk, hop, and whether it carries a contribution."""


@dataclass(slots=True, kw_only=True)
class _Lists:
    """Who sends where, of one chunk in one direction, by rank."""

    into: dict[int, list[Any]] = field(default_factory=dict)
    out: dict[int, list[Any]] = field(default_factory=dict)


class _Model:
    """The CP-SAT model and its variables."""

    def __init__(
        self,
        demand: Demand,
        symmetry: Symmetry,
        chunks: Mapping[int, DataChunk],
        hops: list[SwitchPath],
        hint: TimedSchedule,
    ) -> None:
        self.cp: Any = cp_model().CpModel()
        self.sent: dict[_Key, Any] = {}
        self.start: dict[_Key, Any] = {}
        self._demand, self._hops, self._symmetry = demand, hops, symmetry
        self._rates = [k.rate for k in demand.network.links]
        self._taken = {
            (c.share, rate): microseconds(demand.nbytes * c.share, rate)
            for c in chunks.values()
            for rate in self._rates
        }
        fastest = min(self._taken.values())
        self.unit = max(Fraction(1, 1000), Fraction(math.floor(fastest * 25), 1000))
        self._known = replay(hint)
        self.horizon = math.ceil(self._known.us * Fraction(11, 10) / self.unit) + 1
        self._lists: dict[int, list[Any]] = {}
        self._ends: list[Any] = []

    def add(self, c: DataChunk, allowed: Allowed | None) -> None:
        """Add one chunk: a tree to its owner, a tree from it."""
        n = self._demand.network.num_ranks
        members = set(self._demand.network.members)
        whole = [self.cp.new_int_var(0, self.horizon, "") for _ in range(n)]
        got = [self.cp.new_int_var(0, self.horizon, "") for _ in range(n)]
        self.cp.add(got[c.origin] == whole[c.origin])
        summed, spread = _Lists(), _Lists()
        for i, h in enumerate(self._hops):
            if h.src != c.origin and (allowed is None or allowed(c, h, True)):
                self._transfer(c, i, whole, summed, combine=True)
            if h.dst != c.origin and (allowed is None or allowed(c, h, False)):
                self._transfer(c, i, got, spread, combine=False)
        for v in range(n):
            if v == c.origin:
                continue
            leaving, entering = summed.out.get(v, []), spread.into.get(v, [])
            if v in members:
                self.cp.add_exactly_one(leaving)
                self.cp.add_exactly_one(entering)
                self._ends.append(got[v])
                continue
            self.cp.add_at_most_one(leaving)
            self.cp.add_at_most_one(entering)
            for x in summed.into.get(v, []):  # a relay passes on what it is given
                self.cp.add_bool_or(leaving).only_enforce_if(x)
            for x in leaving:
                self.cp.add_bool_or(summed.into.get(v, [])).only_enforce_if(x)
            for x in spread.out.get(v, []):
                self.cp.add_bool_or(entering).only_enforce_if(x)

    def _transfer(
        self, c: DataChunk, i: int, known: list[Any], lists: _Lists, *, combine: bool
    ) -> None:
        hop = self._hops[i]
        sent = self.cp.new_bool_var("")
        start = self.cp.new_int_var(0, self.horizon, "")
        self.sent[c.number, i, combine], self.start[c.number, i, combine] = sent, start
        longest = Fraction(0)
        for e in hop.links:
            taken = self._taken[c.share, self._rates[e]] * self._symmetry.images[e]
            ticks = math.ceil(taken / self.unit)
            longest = max(longest, taken)
            interval = self.cp.new_optional_fixed_size_interval_var(
                start, ticks, sent, ""
            )
            self._lists.setdefault(self._symmetry.link_orbit[e], []).append(interval)
        delay = math.ceil((longest + hop.alpha) / self.unit)
        self.cp.add(start >= known[hop.src]).only_enforce_if(sent)
        self.cp.add(known[hop.dst] >= start + delay).only_enforce_if(sent)
        lists.out.setdefault(hop.src, []).append(sent)
        lists.into.setdefault(hop.dst, []).append(sent)

    def close(self, bound: Bounds) -> None:
        """Let no link carry two things at once; ask for an early end."""
        for intervals in self._lists.values():
            self.cp.add_no_overlap(intervals)
        floor = math.floor(bound.us(self._demand.nbytes) / self.unit)
        finish = self.cp.new_int_var(min(floor, self.horizon), self.horizon, "")
        for end in self._ends:
            self.cp.add(finish >= end)
        self.cp.minimize(finish)

    def follow(self, hint: TimedSchedule) -> None:
        """Start from a schedule that is known."""
        starts = {
            (m.chunk, m.links, m.combine): start
            for m, start in zip(hint.moves, self._known.starts, strict=True)
        }
        for key, sent in self.sent.items():
            start = starts.get((key[0], self._hops[key[1]].links, key[2]))
            self.cp.add_hint(sent, start is not None)
            if start is not None:
                self.cp.add_hint(self.start[key], math.ceil(start / self.unit))
