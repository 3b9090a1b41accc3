"""The best shifts there are, by CP-SAT: the yardstick of what is found quickly."""

from __future__ import annotations

from stretto.network.cassini.shifts import ShiftProblem, Shifts, score
from stretto.synth.solvers import cp_model, solved

__all__ = ["exact"]

_SCALE = 1000
"""Whole numbers to a Gb/s."""


def exact(problem: ShiftProblem, *, seconds: float = 60.0) -> tuple[Shifts, bool]:
    """Return the best shifts, and whether none are better: loops do not matter here.

    One yes or no for every shift of a job; what a link lacks in a part is linear.
    """
    cp = cp_model()
    model = cp.CpModel()
    size = problem.circle.parts
    chosen = {}
    for index, job in enumerate(problem.jobs):
        room = 1 if index == 0 else problem.room(job)  # one may stay where it is
        chosen[job] = [model.new_bool_var(f"s{job}_{i}") for i in range(room)]
        model.add_exactly_one(chosen[job])
    lacking = []
    for link, asks in problem.asks.items():
        scaled = {j: [round(a * _SCALE) for a in ask] for j, ask in asks.items()}
        capacity = problem.capacity[link]
        most = sum(max(ask) for ask in scaled.values())
        for part in range(size):
            over = model.new_int_var(0, most, f"o{link}_{part}")
            terms = [
                ask[(part - shift) % size] * picked
                for job, ask in scaled.items()
                for shift, picked in enumerate(chosen[job])
                if ask[(part - shift) % size]
            ]
            model.add(over >= sum(terms) - round(capacity * _SCALE))
            lacking.append((over, 1 / capacity))
    model.minimize(sum(round(share * 1e6) * over for over, share in lacking))
    solver = cp.CpSolver()
    solver.parameters.max_time_in_seconds = seconds
    solver.parameters.num_workers = 1
    status = solved(solver, model)
    parts = dict.fromkeys(problem.jobs, 0)
    if status in (cp.OPTIMAL, cp.FEASIBLE):
        for job, picked in chosen.items():
            parts[job] = next(i for i, v in enumerate(picked) if solver.value(v))
    return score(problem, parts), bool(status == cp.OPTIMAL)
