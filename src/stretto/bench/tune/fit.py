"""Fit the simulator's constants to what was measured.

Coordinate descent on the logarithms of the costs, from the machine's file: nothing is
assumed of the shape of the error but that a step that lowers it is a step forward. The
error of a row is |log(simulated / measured)|; their mean is lowered, their median told.
Measured is the fastest batch: a simulated machine is never disturbed.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from stretto.compiler.plan import ProvedPlan, Schedule
from stretto.errors import CallError, StrettoError
from stretto.executors import sim
from stretto.program import algorithms
from stretto.program.ir import freeze
from stretto.runtime.choice import frozen, proved_plan
from stretto.topology import Machine

_COSTS = (
    *("launch_us", "op_overhead_us", "flag_latency_us", "engine_us"),
    *("lane_gbytes_per_s", "pull_gbytes_per_s", "engine_gbytes_per_s"),
    *("block_gbytes_per_s", "copy_gbytes_per_s", "reduce_gbytes_per_s"),
    "packet_efficiency",
)
_SHARES = ("packet_efficiency",)
_LINKS = ("latency_us", "bandwidth_gbytes_per_s")
_STEPS = (1.5, 1.15, 1.04)
_PASSES = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class Observation:
    """A plan, a size, and what it took."""

    plan: ProvedPlan
    nbytes: int
    us: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Fit:
    """The machine that explains the measurements best."""

    machine: Machine
    median_error: float
    """Of simulated against measured time, as a share of the latter."""
    median_before: float
    by_algorithm: Mapping[str, float]
    rows: int


def observations(document: Mapping[str, Any]) -> list[Observation]:
    """Return what a bench document, or a tuning, tells of plans that can be named."""
    found = []
    for row in document.get("rows", ()):
        if (
            row["ok"]
            and row["algorithm"]
            and row["p50_us"]
            and row["test"] == row["collective"]  # parts are equal
        ):
            one = _observed(row["algorithm"], row, row["min_us"])
            found += [one] if one else []
    for row in document.get("trials", ()):
        one = _observed(row["pin"], {**row, "ranks": document["ranks"]}, row["min_us"])
        found += [one] if one else []
    if not found:
        raise CallError(
            "no row names an algorithm; want stretto bench --algorithms all"
        )
    return found


def fit(seen: Sequence[Observation], machine: Machine) -> Fit:
    """Return the machine with the constants that fit."""
    before = _errors(seen, machine)
    best, error = machine, float(np.mean(before))
    knobs: list[Callable[[Machine, float], Machine]] = [
        *(_cost_knob(name) for name in _COSTS if _is_set(machine, name)),
        *(_link_knob(name) for name in _LINKS),
    ]
    for step in _STEPS:
        for _ in range(_PASSES):
            improved = False
            for knob in knobs:
                for factor in (step, 1 / step):
                    while True:  # on, as long as it gets better
                        tried = knob(best, factor)
                        now = float(np.mean(_errors(seen, tried)))
                        if now >= error * 0.9995:
                            break
                        best, error, improved = tried, now, True
            if not improved:
                break
    after = _errors(seen, best)
    names = [one.plan.value.name for one in seen]
    return Fit(
        machine=best,
        median_error=_share(after),
        median_before=_share(before),
        by_algorithm={
            name: _share([e for e, n in zip(after, names, strict=True) if n == name])
            for name in dict.fromkeys(names)
        },
        rows=len(seen),
    )


def toml_of(found: Fit) -> str:
    """Return the constants as a machine file writes them."""
    costs, link = found.machine.costs, found.machine.links[0]
    now, then = (f"{100 * e:.0f} %" for e in (found.median_error, found.median_before))
    said = f"# Fitted to {found.rows} measurements: median error {now}, before {then}."
    lines = [said, "[costs]"]
    lines += [
        f"{name} = {getattr(costs, name):.4g}"
        for name in _COSTS
        if _is_set(found.machine, name)
    ]
    lines += [
        "",
        "# of a link",
        f"bandwidth_gbytes_per_s = {link.bandwidth_gbytes_per_s:.4g}",
    ]
    lines.append(f"latency_us = {link.latency_us:.4g}")
    lines += ["", "# median error by algorithm"]
    lines += [f"# {name}: {100 * e:.0f} %" for name, e in found.by_algorithm.items()]
    return "\n".join(lines) + "\n"


def _observed(pin: str, row: Mapping[str, Any], us: float) -> Observation | None:
    """Return a measurement of a plan; None where this version has no such plan."""
    name, _, words = pin.partition(" ")
    collective, n = name.split("/")[0], int(row["ranks"])
    params: dict[str, Any] = {}
    if collective in ("broadcast", "reduce", "gather", "scatter"):
        params["root"] = 0
    elif collective == "permute":
        params["pairs"] = tuple((r, (r + 1) % n) for r in range(n))
    try:
        algorithm, schedule = algorithms.get(name), Schedule.parse(words)
        plan = proved_plan(algorithm, n, frozen(freeze(params)), schedule, False)
    except StrettoError:
        return None
    return Observation(plan=plan, nbytes=int(row["nbytes"]), us=float(us))


def _errors(seen: Sequence[Observation], machine: Machine) -> list[float]:
    simulate = sim.simulate
    found = []
    for one in seen:
        us = simulate(one.plan, machine, nbytes=one.nbytes).time_us
        found.append(abs(math.log(us / one.us)))
    return found


def _share(errors: Sequence[float]) -> float:
    """Return the median as a share: log errors of e are ratios of exp(e)."""
    return float(np.expm1(np.median(errors)))


def _is_set(machine: Machine, name: str) -> bool:
    value = getattr(machine.costs, name)
    return bool(0 < value < math.inf)


def _cost_knob(name: str) -> Callable[[Machine, float], Machine]:
    def turn(machine: Machine, factor: float) -> Machine:
        value = getattr(machine.costs, name) * factor
        value = min(1.0, value) if name in _SHARES else value
        return replace(machine, costs=replace(machine.costs, **{name: value}))

    return turn


def _link_knob(name: str) -> Callable[[Machine, float], Machine]:
    def turn(machine: Machine, factor: float) -> Machine:
        links = tuple(
            replace(link, **{name: getattr(link, name) * factor})
            for link in machine.links
        )
        return replace(machine, links=links)

    return turn
