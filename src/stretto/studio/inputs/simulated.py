"""A program's run in the simulator, as the recording that processes would leave."""

from __future__ import annotations

from dataclasses import replace

from stretto import watch
from stretto._version import __version__
from stretto.compiler.lower import lower
from stretto.compiler.plan import Schedule
from stretto.compiler.verify import verify, verify_plan
from stretto.errors import CallError
from stretto.executors import sim
from stretto.studio.inputs.given import NamedInputs
from stretto.topology import Machine
from stretto.trace import CallKind, Recorder, Recording

_MOST_EVENTS = 2_000_000
_FEW_EPOCHS = 2
"""Tiles that are simulated: the first shows how the pipeline fills, the next how it
runs."""


def simulated(given: NamedInputs, machine: Machine | None) -> Recording:
    """Return the recording of one simulated call of the program."""
    program = given.program
    assert program is not None  # the caller looked
    if machine is None:
        raise CallError("a program is simulated on a machine; give --machine")
    proved = verify(program)
    plan = verify_plan(lower(proved, Schedule.parse(given.schedule)), proved)
    recorder = Recorder(_MOST_EVENTS)
    events = 2 * _FEW_EPOCHS * sum(1 for _ in plan.value.steps())  # steps, and waits
    if events > _MOST_EVENTS:
        raise CallError(
            f"{program.name} for {program.num_ranks} ranks: up to {events:,} events; "
            f"want {_MOST_EVENTS:,} at most: show it for fewer ranks"
        )
    simulate = sim.simulate
    simulate(
        plan,
        machine,
        nbytes=given.nbytes,
        recorder=recorder,
        max_epochs=_FEW_EPOCHS,
    )
    kind = CallKind(
        collective=program.collective,
        nbytes=given.nbytes,
        dtype=given.dtype,
        algorithm=program.name,
        schedule=str(plan.value.schedule),
        plan=plan.value.digest,
        executor="sim",
        text=f"{program.name} on {machine.name}",
    )
    found = watch.simulated(
        recorder.events(), kind, program.num_ranks, machine=machine.name
    )
    return replace(found, run=replace(found.run, version=__version__))
