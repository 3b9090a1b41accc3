"""Run plans in virtual time, on a described machine."""

from __future__ import annotations

from collections.abc import Mapping

from stretto import topology
from stretto.compiler.plan import Plan, Verified
from stretto.errors import CallError
from stretto.executors import Call, Group, Session
from stretto.executors.sim.result import LinkLoad, Simulation
from stretto.executors.sim.simulate import simulate

__all__ = [
    "LinkLoad",
    "Simulation",
    "between_hosts",
    "doctor",
    "lacks",
    "load",
    "open_session",
    "simulate",
    "stands_on",
    "trusted",
    "unavailable",
]


def load(*, far: bool = False) -> None:
    """Load nothing: there are no sessions."""
    del far


def stands_on() -> str:
    """Return that any number of ranks may share all there is."""
    return ""


def unavailable(group: Group) -> None:
    """Leave it to `open_session` to refuse."""
    del group


def open_session(group: Group) -> Session:
    """Refuse: all ranks of a simulation live in one process."""
    raise CallError(
        f"executor 'sim' has no processes, got rank {group.rank} of a group; call "
        f"simulate() for times, or use executor 'cpu'"
    )


def trusted(plan: Verified[Plan], call: Call) -> str:
    """Return that nothing stands on less than a proof: nobody's data are at stake."""
    del plan, call
    return ""


def lacks(num_ranks: int) -> str:
    """Return why a communicator cannot use it: it has no processes."""
    del num_ranks
    return "executor 'sim' has no processes; want cpu or cuda"


def between_hosts() -> str:
    """Return how data go from one host to another, in words."""
    return "between hosts as the machine's description says"


def doctor() -> Mapping[str, str]:
    """Return what the simulator knows."""
    known = topology.names()
    return {"machines": f"{len(known)} by name, more by parameter or file"}
