"""Run plans in virtual time on a described machine, or on arrays in any order."""

from __future__ import annotations

from collections.abc import Mapping

from stretto import topology
from stretto.errors import CallError
from stretto.executors import Group, Session
from stretto.executors.sim.interleave import interleave
from stretto.executors.sim.result import LinkLoad, Simulation
from stretto.executors.sim.simulate import simulate
from stretto.executors.sim.written import Written, written

__all__ = [
    "LinkLoad",
    "Simulation",
    "Written",
    "doctor",
    "interleave",
    "open_session",
    "simulate",
    "unavailable",
    "written",
]


def unavailable(group: Group) -> None:
    """Leave it to `open_session` to refuse."""
    del group


def open_session(group: Group) -> Session:
    """Refuse: all ranks of a simulation live in one process."""
    raise CallError(
        f"executor 'sim' has no processes, got rank {group.rank} of a group; call "
        f"simulate() for times or interleave() for results, or use executor 'cpu'"
    )


def doctor() -> Mapping[str, str]:
    """Return what the simulator knows."""
    known = topology.names()
    return {"machines": f"{len(known)} by name, more by parameter or file"}
