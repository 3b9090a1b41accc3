"""Run plans on this machine's processors, between processes that share memory."""

from __future__ import annotations

from stretto import hop
from stretto.executors import Call, Group
from stretto.executors.cpu.doctor import doctor
from stretto.executors.cpu.session import CpuSession
from stretto.ir import Verified
from stretto.plan import Plan

__all__ = [
    "CpuSession",
    "between_hosts",
    "doctor",
    "lacks",
    "open_session",
    "trusted",
    "unavailable",
]


def open_session(group: Group, *, interpreter: str | None = None) -> CpuSession:
    """Open a session for a group of ranks on one host (collective).

    `interpreter` is "numba" or "numpy"; by default the compiled one where it can be.
    """
    return CpuSession(group, interpreter=interpreter)


def unavailable(group: Group) -> None:
    """Return that every rank can open a session."""
    del group


def lacks(num_ranks: int, *, several_hosts: bool) -> str:
    """Return why so many ranks cannot be served, or "": they can, everywhere."""
    del num_ranks, several_hosts
    return ""


def between_hosts() -> str:
    """Return how data go from one host to another, in words."""
    return f"between hosts by {hop.chosen()}"


def trusted(plan: Verified[Plan], call: Call) -> str:
    """Return, in a word, what of such a call stands on less than a proof."""
    del plan  # it runs as it was proved, by one interpreter
    return "epilogue" if call.epilogue else "rows with a pitch" * any(call.rows)
