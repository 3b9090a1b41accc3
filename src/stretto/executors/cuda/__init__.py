"""Run plans on GPUs: one kernel compiled for each, or copy engines."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from stretto.collectives import Operator
from stretto.executors import Group
from stretto.ir import Verified
from stretto.plan import Plan

if TYPE_CHECKING:
    from stretto.executors.cuda.session import CudaSession

__all__ = ["doctor", "include_path", "open_session", "show"]


def open_session(group: Group) -> CudaSession:
    """Open a session for a group (collective)."""
    from stretto.executors.cuda.session import CudaSession

    return CudaSession(group)


def doctor() -> Mapping[str, str]:
    """Return what this machine has and what is missing, by subject."""
    from stretto.executors.cuda.doctor import examine

    return examine()


def include_path() -> str:
    """Return the folder of headers for kernels of your own."""
    return str(Path(__file__).parent / "kernels")


def show(plan: Verified[Plan], *, dtype: str, op: Operator, rank: int = 0) -> str:
    """Return the text of one rank's kernel."""
    from stretto.executors.cuda.generate import generate

    return generate(plan.value, rank=rank, dtype=dtype, op=op).text
