"""Run plans on GPUs: one kernel compiled for each, or copy engines."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from stretto.executors import Group

if TYPE_CHECKING:
    from stretto.executors.cuda.session import CudaSession

__all__ = ["doctor", "include_path", "open_session"]


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
