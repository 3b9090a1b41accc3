"""Run plans on this machine's processors, between processes that share memory."""

from __future__ import annotations

from stretto.executors import Group
from stretto.executors.cpu.doctor import doctor
from stretto.executors.cpu.session import CpuSession

__all__ = ["CpuSession", "doctor", "open_session"]


def open_session(group: Group, *, interpreter: str | None = None) -> CpuSession:
    """Open a session for a group of ranks on one host (collective).

    `interpreter` is "numba" or "numpy"; by default the compiled one where it can be.
    """
    return CpuSession(group, interpreter=interpreter)
