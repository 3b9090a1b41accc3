"""Run plans on this machine's processors, between processes that share memory."""

from __future__ import annotations

import importlib

from stretto.compiler.plan import ProvedPlan
from stretto.executors import Call, Group
from stretto.executors.cpu.doctor import doctor
from stretto.executors.cpu.session import CpuSession
from stretto.fabric import hop

__all__ = [
    "CpuSession",
    "between_hosts",
    "doctor",
    "lacks",
    "load",
    "open_session",
    "stands_on",
    "trusted",
    "unavailable",
]


def open_session(group: Group) -> CpuSession:
    """Open a session for a group of ranks (collective)."""
    return CpuSession(group)


def load(*, far: bool = False) -> None:
    """Load the interpreter, which takes half a second; what goes to others, too."""
    importlib.import_module("stretto.executors.cpu.running.loaded").interpreter()
    if far:
        importlib.import_module("stretto.executors.cpu.sharing").load_far()


def stands_on() -> str:
    """Return that any number of ranks may share all there is."""
    return ""


def unavailable(group: Group) -> None:
    """Return that every rank can open a session."""
    del group


def lacks(num_ranks: int) -> str:
    """Return why so many ranks cannot be served, or "": they can, everywhere."""
    del num_ranks
    return ""


def between_hosts() -> str:
    """Return how data go from one host to another, in words."""
    return f"between hosts by {hop.chosen()}"


def trusted(plan: ProvedPlan, call: Call) -> str:
    """Return, in a word, what of such a call stands on less than a proof."""
    del plan  # it runs as it was proved, by one interpreter
    return "epilogue" if call.epilogue else "rows with a pitch" * any(call.rows)
