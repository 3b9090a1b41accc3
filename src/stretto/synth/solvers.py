"""The solvers, imported late: without them only synthesis is missing."""

from __future__ import annotations

import sys
from typing import Any

from stretto.errors import MissingExtraError

__all__ = ["cp_model", "csgraph", "optimize", "sparse"]


def cp_model() -> Any:
    """Return OR-Tools' CP-SAT module."""
    if not {"nixl_cu13", "nixl_cu12", "nixl_rocm"}.isdisjoint(sys.modules):
        raise MissingExtraError(
            "OR-Tools and NIXL crash in one process, and NIXL is loaded: "
            "synthesise in a process of its own"
        )
    try:
        from ortools.sat.python import cp_model as module
    except ModuleNotFoundError as e:
        raise _missing("ortools") from e
    return module


def optimize() -> Any:
    """Return `scipy.optimize`, whose `linprog` is HiGHS."""
    try:
        from scipy import optimize as module
    except ModuleNotFoundError as e:
        raise _missing("scipy") from e
    return module


def sparse() -> Any:
    """Return `scipy.sparse`."""
    try:
        from scipy import sparse as module
    except ModuleNotFoundError as e:
        raise _missing("scipy") from e
    return module


def csgraph() -> Any:
    """Return `scipy.sparse.csgraph`: shortest paths."""
    try:
        from scipy.sparse import csgraph as module
    except ModuleNotFoundError as e:
        raise _missing("scipy") from e
    return module


def _missing(what: str) -> MissingExtraError:
    return MissingExtraError(
        f"synthesis: got no {what}, want the solvers; pip install 'stretto[synth]'"
    )
