"""A program's run in the simulator, as the recording that processes would leave."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from stretto import executors
from stretto._version import __version__
from stretto.errors import CallError
from stretto.lower import lower
from stretto.plan import Plan, Schedule
from stretto.studio.given import Given
from stretto.topology import Machine
from stretto.trace import (
    CALL,
    STATES,
    STEP,
    STEP_KINDS,
    CallKind,
    Comm,
    Event,
    RankInfo,
    Recorder,
    Recording,
    Run,
)
from stretto.verify import verify, verify_plan

__all__ = ["simulated"]

_MOST_EVENTS = 4_000_000
_FEW_EPOCHS = 2
"""Tiles that are simulated: the first shows how the pipeline fills, the next how it
runs."""
_ORIGIN_NS = 1_000
"""Virtual time 0; a time of 0 says that nobody looked."""


def simulated(given: Given, machine: Machine | None) -> Recording:
    """Return the recording of one simulated call of the program."""
    assert given.program is not None  # the caller looked
    if machine is None:
        raise CallError("a program is simulated on a machine; give --machine")
    proved = verify(given.program)
    schedule = Schedule.parse(given.schedule)
    plan = verify_plan(lower(proved, schedule), proved)
    recorder = Recorder(_MOST_EVENTS)
    found = executors.get("sim").simulate(
        plan,
        machine,
        nbytes=given.nbytes,
        recorder=recorder,
        max_epochs=_FEW_EPOCHS,
    )
    return _recording(plan.value, machine, given, recorder.events(), found)


def _recording(
    plan: Plan,
    machine: Machine,
    given: Given,
    events: tuple[Event, ...],
    found: object,
) -> Recording:
    steps = np.zeros(len(events), STEP)
    kinds = {name: i for i, name in enumerate(STEP_KINDS)}
    for column, values in (
        ("rank", [e.rank for e in events]),
        ("lane", [e.lane for e in events]),
        ("kind", [kinds[e.name] for e in events]),
        ("step", [e.step for e in events]),
        ("peer", [e.peer for e in events]),
        ("tile", [e.epoch for e in events]),
        ("nbytes", [e.nbytes for e in events]),
    ):
        steps[column] = values
    steps["seq"] = 1
    steps["begin"] = _ns([e.t0_us for e in events])
    steps["end"] = _ns([e.t1_us for e in events])
    waits = steps["kind"] == kinds["wait"]
    steps["wait"] = np.where(waits, steps["end"] - steps["begin"], 0)
    n = plan.num_ranks
    calls = np.zeros(n, CALL)
    calls["rank"], calls["seq"] = np.arange(n), 1
    calls["state"], calls["nbytes"] = STATES.index("done"), given.nbytes
    calls["enqueue"] = calls["start"] = _ORIGIN_NS
    ends = np.full(n, _ORIGIN_NS, np.int64)
    np.maximum.at(ends, steps["rank"], steps["end"])
    calls["end"] = ends
    info = RankInfo(rank=0, num_ranks=n, clock="virtual")
    box = machine.ranks_per_box
    kind = CallKind(
        collective=plan.collective,
        nbytes=given.nbytes,
        dtype=given.dtype,
        algorithm=plan.name,
        schedule=str(plan.schedule),
        plan=plan.digest,
        executor="sim",
    )
    return Recording(
        calls=calls,
        steps=steps,
        ranks=tuple(replace(info, rank=r, host=f"box {r // box}") for r in range(n)),
        comms=(Comm(name="world", members=tuple(range(n))),),
        kinds=(kind,),
        run=Run(
            title=f"{plan.name} simulated on {machine.name}",
            machine=machine.name,
            version=__version__,
        ),
    )


def _ns(times_us: list[float]) -> np.ndarray:
    return np.rint(np.asarray(times_us) * 1e3).astype(np.int64) + _ORIGIN_NS
