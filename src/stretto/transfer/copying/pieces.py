"""Where a transfer's bytes lie on one side, as pieces in the order of its runs."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from stretto.transfer.copying.work import CopyWork

_LONG = 4096
"""Bytes of a piece, in the mean."""


def pieces_of(works: Sequence[CopyWork], *, is_source: bool) -> NDArray[np.int64]:
    """Return the address of each piece, its bytes, and those of all before it.

    Runs that follow one another in memory are one piece.
    """
    places = [work.places(is_source=is_source) for work in works]
    sizes = [
        np.full(len(at), work.row_bytes, np.int64)
        for at, work in zip(places, works, strict=True)
    ]
    at, nbytes = np.concatenate(places), np.concatenate(sizes)
    begins = np.ones(len(at), bool)
    begins[1:] = at[1:] != at[:-1] + nbytes[:-1]
    first = np.flatnonzero(begins)
    pieces = np.zeros((len(first), 3), np.int64)
    pieces[:, 0] = at[first]
    pieces[:, 1] = np.add.reduceat(nbytes, first)
    pieces[1:, 2] = np.cumsum(pieces[:-1, 1])
    return pieces


def are_long(pieces: NDArray[np.int64]) -> bool:
    """Return whether it is better to send each for itself than to gather them."""
    many = len(pieces)
    return many == 1 or int(pieces[-1, 1] + pieces[-1, 2]) >= many * _LONG
