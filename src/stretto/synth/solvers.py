"""The solvers, imported late: without them only synthesis is missing."""

from __future__ import annotations

import importlib
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
    return _load("ortools.sat.python.cp_model")


def optimize() -> Any:
    """Return `scipy.optimize`, whose `linprog` is HiGHS."""
    return _load("scipy.optimize")


def sparse() -> Any:
    """Return `scipy.sparse`."""
    return _load("scipy.sparse")


def csgraph() -> Any:
    """Return `scipy.sparse.csgraph`: shortest paths."""
    return _load("scipy.sparse.csgraph")


def _load(name: str) -> Any:
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as e:
        raise MissingExtraError(
            f"synthesis: got no {name.partition('.')[0]}, want the solvers; "
            "pip install 'stretto[synth]'"
        ) from e
