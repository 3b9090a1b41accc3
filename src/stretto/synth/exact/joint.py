"""Routing and timing in one model: optional intervals on links, solved by CP-SAT.

For every chunk and every way between two ranks there is a Boolean, whether the chunk
goes there, and a start. A rank receives a chunk once and sends it only afterwards.
Transfers over a link do not overlap; alpha delays but does not occupy. One chunk of
every symmetry orbit is modelled, and all links of an orbit share one list of intervals:
images run at the same time, so this is exact among symmetric schedules.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Any

from stretto.errors import TopologyError
from stretto.synth.bounds.bound import Bounds
from stretto.synth.budget import Budget
from stretto.synth.network.model import SwitchPath, microseconds
from stretto.synth.network.symmetry import Symmetry
from stretto.synth.schedules.schedule import DataChunk, Demand, TimedMove, TimedSchedule
from stretto.synth.schedules.unfold import representatives, unfold
from stretto.synth.solvers import cp_model, solved

__all__ = ["SolverResult", "solve_joint", "solved", "solver_of"]


@dataclass(frozen=True, slots=True, kw_only=True)
class SolverResult:
    """What the solver found and what it knows."""

    schedule: TimedSchedule | None
    proved: bool
    """Nothing better exists in the model, or nothing at all does."""


@dataclass(slots=True, kw_only=True)
class JointModel:
    """The CP-SAT model and its variables."""

    cp: Any
    unit: Fraction
    horizon: int
    sent: dict[tuple[int, int], Any] = field(default_factory=dict)
    """By (chunk, hop)."""
    start: dict[tuple[int, int], Any] = field(default_factory=dict)
    arrival: dict[tuple[int, int], Any] = field(default_factory=dict)
    """By (chunk, rank)."""
    finish: Any = None


_PACE = 15.0  # real seconds for one of the solver's deterministic seconds, about


def solve_joint(
    demand: Demand,
    symmetry: Symmetry,
    bound: Bounds,
    *,
    budget: Budget,
    hint: TimedSchedule | None = None,
    hops: list[SwitchPath] | None = None,
    allowed: Callable[[DataChunk, SwitchPath], bool] | None = None,
    progress: Callable[[float], None] | None = None,
) -> SolverResult:
    """Return the best symmetric schedule found within the budget."""
    network = demand.network
    if hops is None:
        leaving = network.leaving()
        hops = [h for r in range(network.num_ranks) for h in network.hops(r, leaving)]
    kept = set(representatives(demand, symmetry))
    chunks = {c.number: c for c in demand.chunks() if c.number in kept}
    model = _build(demand, symmetry, bound, chunks, hops, hint, allowed)
    if hint is not None:
        _hint(model, hint, chunks, hops)
    solver = solver_of(budget)
    watch = _Watch.make(model, progress) if progress else None
    status = solved(solver, model.cp, watch)
    names = cp_model()
    if status == names.INFEASIBLE:
        return SolverResult(schedule=None, proved=True)
    if status not in (names.OPTIMAL, names.FEASIBLE):
        return SolverResult(schedule=None, proved=False)
    moves = [
        TimedMove(
            solver.value(model.start[c, i]) * model.unit, c, h.src, h.dst, h.links
        )
        for (c, i), sent in model.sent.items()
        if solver.value(sent)
        for h in (hops[i],)
    ]
    moves = _needed(moves, chunks)
    found = unfold(demand, moves, symmetry, "joint")
    return SolverResult(schedule=found, proved=status == names.OPTIMAL)


def solver_of(budget: Budget) -> Any:
    """Return a solver that is repeatable: one worker, a deterministic clock.

    One search, not several in turn: those would each hold the model, and find less.
    """
    solver = cp_model().CpSolver()
    solver.parameters.num_workers = 1
    solver.parameters.random_seed = budget.seed
    solver.parameters.max_deterministic_time = budget.seconds / _PACE
    if budget.whole is not None:
        solver.parameters.max_time_in_seconds = budget.whole
    return solver


class _Watch:
    """Makes a solution callback without importing the solver at load time."""

    @staticmethod
    def make(model: JointModel, progress: Callable[[float], None]) -> Any:
        base: Any = cp_model().CpSolverSolutionCallback

        def on_solution_callback(self: Any) -> None:
            progress(float(self.objective_value * model.unit))

        kind = type("Watch", (base,), {"on_solution_callback": on_solution_callback})
        return kind()


def _build(
    demand: Demand,
    symmetry: Symmetry,
    bound: Bounds,
    chunks: Mapping[int, DataChunk],
    hops: list[SwitchPath],
    hint: TimedSchedule | None,
    allowed: Callable[[DataChunk, SwitchPath], bool] | None,
) -> JointModel:
    network = demand.network
    taken = {
        c.share: {r: microseconds(demand.nbytes * c.share, r) for r in _rates(demand)}
        for c in chunks.values()
    }
    fastest = min(min(t.values()) for t in taken.values())
    unit = max(Fraction(1, 1000), Fraction(math.floor(fastest * 1000 / 40), 1000))
    longest = _horizon(demand, chunks, hops, hint)
    model = JointModel(
        cp=cp_model().CpModel(), unit=unit, horizon=math.ceil(longest / unit) + 1
    )
    floor = math.floor(bound.us(demand.nbytes) / unit)
    model.finish = model.cp.new_int_var(floor, model.horizon, "finish")
    lists: dict[int, list[Any]] = {}
    away = _box_of(demand)
    for c in chunks.values():
        for v in range(network.num_ranks):
            low = 0
            model.arrival[c.number, v] = model.cp.new_int_var(low, model.horizon, "")
        model.cp.add(model.arrival[c.number, c.origin] == 0)
        entering: dict[int, list[Any]] = {v: [] for v in range(network.num_ranks)}
        for i, h in enumerate(hops):
            if h.dst == c.origin or (away[h.src] != away[h.dst] == away[c.origin]):
                continue
            if allowed is not None and not allowed(c, h):
                continue
            _transfer(model, symmetry, c, i, h, taken[c.share], network, lists)
            entering[h.dst].append(model.sent[c.number, i])
        for v, into in entering.items():
            if v in c.wanted and v != c.origin:
                model.cp.add_exactly_one(into)
                model.cp.add(model.finish >= model.arrival[c.number, v])
            elif v != c.origin:
                model.cp.add_at_most_one(into)
        _relays(model, c, hops, entering)
    for intervals in lists.values():
        model.cp.add_no_overlap(intervals)
    model.cp.minimize(model.finish)
    return model


def _transfer(
    model: JointModel,
    symmetry: Symmetry,
    c: DataChunk,
    i: int,
    h: SwitchPath,
    taken: Mapping[Fraction, Fraction],
    network: Any,
    lists: dict[int, list[Any]],
) -> None:
    cp, unit = model.cp, model.unit
    sent = cp.new_bool_var("")
    start = cp.new_int_var(0, model.horizon, "")
    model.sent[c.number, i], model.start[c.number, i] = sent, start
    longest = Fraction(0)
    for e in h.links:
        whole = taken[network.links[e].rate] * symmetry.images[e]
        longest = max(longest, whole)
        length = math.ceil(whole / unit)
        interval = cp.new_optional_fixed_size_interval_var(start, length, sent, "")
        lists.setdefault(symmetry.link_orbit[e], []).append(interval)
    delay = math.ceil((longest + h.alpha) / unit)
    cp.add(start >= model.arrival[c.number, h.src]).only_enforce_if(sent)
    cp.add(model.arrival[c.number, h.dst] >= start + delay).only_enforce_if(sent)


def _relays(
    model: JointModel,
    c: DataChunk,
    hops: list[SwitchPath],
    entering: dict[int, list[Any]],
) -> None:
    """A rank that does not want the chunk may send it only when it received it."""
    for i, h in enumerate(hops):
        if h.src in c.wanted or h.src == c.origin or (c.number, i) not in model.sent:
            continue
        model.cp.add_bool_or(entering[h.src]).only_enforce_if(model.sent[c.number, i])


def _rates(demand: Demand) -> set[Fraction]:
    return {k.rate for k in demand.network.links}


def _box_of(demand: Demand) -> list[int]:
    return list(demand.network.box)


def _horizon(
    demand: Demand,
    chunks: Mapping[int, DataChunk],
    hops: list[SwitchPath],
    hint: TimedSchedule | None,
) -> Fraction:
    """Return a time by which some schedule ends."""
    if hint is not None:
        from stretto.synth.schedules.replay import replay

        return replay(hint).us * Fraction(11, 10)
    slowest = min(h.rate for h in hops)
    alpha = max(h.alpha for h in hops)
    if not hops:
        raise TopologyError(f"{demand.network.name}: no way between any two ranks")
    total = sum((c.share for c in chunks.values()), Fraction(0)) * demand.nbytes
    return microseconds(total * demand.network.num_ranks, slowest) + alpha * len(hops)


def _hint(
    model: JointModel,
    hint: TimedSchedule,
    chunks: Mapping[int, DataChunk],
    hops: list[SwitchPath],
) -> None:
    used = {(m.chunk, m.links): m.start for m in hint.moves if m.chunk in chunks}
    for (c, i), sent in model.sent.items():
        start = used.get((c, hops[i].links))
        model.cp.add_hint(sent, start is not None)
        if start is not None:
            model.cp.add_hint(model.start[c, i], math.ceil(start / model.unit))


def _needed(moves: list[TimedMove], chunks: Mapping[int, DataChunk]) -> list[TimedMove]:
    """Return the moves without those that end where nobody wants the chunk."""
    while True:
        sends = {(m.chunk, m.src) for m in moves}
        kept = [
            m
            for m in moves
            if m.dst in chunks[m.chunk].wanted or (m.chunk, m.dst) in sends
        ]
        if len(kept) == len(moves):
            return kept
        moves = kept
