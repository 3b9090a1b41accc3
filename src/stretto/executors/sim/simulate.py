"""Time a proved plan on a machine: how long, which links, which path."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from stretto.compiler.plan import Plan, Verified, layout
from stretto.errors import CallError, refuse_other
from stretto.executors.sim.faults import explain
from stretto.executors.sim.result import (
    Simulation,
    critical_path,
    link_loads,
)
from stretto.executors.sim.simulator import Simulator
from stretto.topology import Machine
from stretto.topology.traffic import Traffic
from stretto.trace import Recorder

_WHOLE = 1 << 62
_MANY_STEPS = 400_000
"""Steps beyond which later epochs are not run but continued at the same pace."""


def simulate(
    plan: Verified[Plan],
    machine: Machine,
    *,
    nbytes: int,
    itemsize: int = 4,
    counts: Sequence[int] | None = None,
    ranks: Sequence[int] = (),
    deadline_us: float = 30e6,
    tile_bytes: int | None = None,
    max_epochs: int | None = None,
    recorder: Recorder | None = None,
    traffic: Traffic[Any] | None = None,
) -> Simulation:
    """Return how the plan runs when every rank enters at time 0.

    `nbytes` is the full vector; `counts` give every part, for unequal ones. `ranks` are
    those of the machine on which the plan's run, in order: its first ones. A call of
    more than `max_epochs` tiles is run that far, and continued at the pace of the last
    half. Dead ranks and links of the machine, and what takes longer than
    `deadline_us`, raise what the runtime would: `PeerLost` or `CollectiveTimeout`.
    `traffic` carries the bytes: a new engine of `topology.traffic`, flows if none.
    """
    p = _plan_of(plan, machine)
    at = tuple(ranks) or tuple(range(p.num_ranks))
    _check_places(p, machine, at)
    sizes = _sizes(p, nbytes, itemsize, counts)
    if tile_bytes is None and p.schedule.protocol == "engine":
        tile_bytes = _WHOLE  # copy engines are told of all of it at once
    bound = layout(p, sizes, itemsize, tile_bytes=tile_bytes)
    epochs = min(bound.tiles, max_epochs or _enough_epochs(p))
    engine = Simulator(
        p,
        machine,
        at=at,
        atom_nbytes=(bound.atom_sizes * (itemsize / bound.tiles)).tolist(),
        epochs=epochs,
        recorder=recorder,
        traffic=traffic,
    )
    finished = engine.run(deadline_us)
    time_us = _continued(engine.epoch_ends_us, bound.tiles)
    if not finished or time_us > deadline_us:
        raise explain(engine, deadline_us, time_us)
    algbw = nbytes / time_us / 1e3 if time_us > 0 else 0.0
    return Simulation(
        plan=p.name,
        machine=machine.name,
        nbytes=nbytes,
        time_us=time_us,
        algbw_gbps=algbw,
        busbw_gbps=algbw * p.bus_factor,
        epochs=bound.tiles,
        simulated_epochs=epochs,
        num_transfers=engine.network.num_transfers,
        links=link_loads(engine, engine.epoch_ends_us[-1]),
        critical_path=_path(engine),
    )


def _plan_of(plan: Verified[Plan], machine: Machine) -> Plan:
    """Return the plan, or say what else was given."""
    proved = "a plan that was proved, as verify_plan(plan) is"
    refuse_other("simulate", plan, Verified, proved)
    refuse_other("simulate", plan.value, Plan, proved)
    refuse_other("simulate", machine, Machine, "a machine: topology.load(name)")
    return plan.value


def _path(engine: Simulator) -> Any:
    """Return the critical path; causes name lanes, and are left in no circle."""
    path = critical_path(engine)
    for lane in engine.lanes:
        lane.causes.clear()
    return path


def _sizes(plan: Plan, nbytes: int, itemsize: int, counts: Sequence[int] | None) -> Any:
    """Return the elements of every part."""
    if counts is None:
        counts = plan.kind.equal_counts(plan.shape, nbytes=nbytes, itemsize=itemsize)
    return plan.symbol_sizes(counts, itemsize)


def _check_places(plan: Plan, machine: Machine, at: Sequence[int]) -> None:
    if plan.num_ranks > machine.num_ranks:
        raise CallError(
            f"{plan.name}: {plan.num_ranks} ranks on {machine.name}, which has "
            f"{machine.num_ranks}; want a larger machine"
        )
    inside = all(0 <= rank < machine.num_ranks for rank in at)
    if len(set(at)) != len(at) or len(at) != plan.num_ranks or not inside:
        raise CallError(
            f"{plan.name} on ranks {at} of {machine.name}; want {plan.num_ranks} of "
            f"its {machine.num_ranks}, each once"
        )


def _enough_epochs(plan: Plan) -> int:
    steps = sum(len(lane) for lanes in plan.ranks for lane in lanes)
    return max(2, min(16, _MANY_STEPS // max(1, steps)))


def _continued(ends_us: Sequence[float], epochs: int) -> float:
    """Return the end of the last epoch when only the first ones were run."""
    run = len(ends_us)
    if run == epochs:
        return ends_us[-1]
    half = run // 2
    pace = (ends_us[-1] - ends_us[half - 1]) / (run - half)
    return ends_us[-1] + pace * (epochs - run)
