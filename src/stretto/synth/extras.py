"""The solvers, imported late: without them only synthesis is missing."""

from __future__ import annotations

from typing import Any

from stretto.errors import MissingExtraError

__all__ = ["cp_model", "optimize", "sparse"]


def cp_model() -> Any:
    """Return OR-Tools' CP-SAT module."""
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


def _missing(what: str) -> MissingExtraError:
    return MissingExtraError(
        f"synthesis: got no {what}, want the solvers; pip install 'stretto[synth]'"
    )
