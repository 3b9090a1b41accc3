"""Rows of arrays that grow: what was there stays, the rest is zeros."""

from __future__ import annotations

from typing import Any

import numpy as np

__all__ = ["taller", "wider"]


def wider(array: Any, columns: int) -> Any:
    """Return an array of more columns."""
    made = np.zeros((array.shape[0], columns), array.dtype)
    made[:, : array.shape[1]] = array
    return made


def taller(array: Any, rows: int) -> Any:
    """Return an array of more rows."""
    made = np.zeros((rows, array.shape[1]), array.dtype)
    made[: array.shape[0]] = array
    return made
