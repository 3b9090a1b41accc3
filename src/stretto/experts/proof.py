"""What is checked of each dispatch where it is asked for: nothing lost or doubled."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from stretto.errors import PromiseError
from stretto.experts.geometry import Geometry
from stretto.runtime.calls import Communicator

if TYPE_CHECKING:
    from stretto.experts.cpu import ReceivedRows

__all__ = ["check_received"]


def check_received(
    comm: Communicator, geometry: Geometry, received: ReceivedRows
) -> None:
    """Raise where a dispatch was no bijection (collective).

    Every choice of an expert has one line at that expert, no line has two, and each
    expert has as many as all ranks have chosen it.
    """
    g, ids = geometry, received.routing.ids
    wanted = np.bincount(ids[ids >= 0], minlength=g.num_experts)
    wanted = comm.all_reduce(wanted.astype(np.int64))
    mine = np.flatnonzero(g.owners() == comm.rank)
    chosen = received.ids[received.ids >= 0]
    have = np.bincount(chosen, minlength=mine.size)
    odd = np.flatnonzero(have != wanted[mine])
    lines = received.places[received.places >= 0]
    why = ""
    if odd.size:
        e = mine[odd[0]]
        why = f"expert {e} has {have[odd[0]]} rows, and was chosen {wanted[e]} times"
    elif np.unique(lines).size != lines.size:
        why = "two rows have one line"
    elif lines.size and lines.max() >= received.rows.shape[0]:
        why = f"line {lines.max()} of {received.rows.shape[0]}"
    said = comm.all_gather_object(why)
    for rank, text in enumerate(said):
        if text:
            raise PromiseError(f"dispatch is no bijection at rank {rank}: {text}")
