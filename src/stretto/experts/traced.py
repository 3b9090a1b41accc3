"""What recordings have of experts: each operation, each link, each expert's load.

Rows of `stretto trace report` and of the studio's Operations; a link's rate is its
bytes over the whole operation. Nothing is counted while nobody records.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

import numpy as np

from stretto.trace import CallKind, collects, observe

if TYPE_CHECKING:
    from stretto.experts.cpu import ReceivedRows

__all__ = ["EXPERTS", "begun", "combined", "dispatched"]

EXPERTS = "experts of rank"
"""Where recordings have them, in place of a communicator."""
_MOST_LOADS = 32
"""Of a rank that has more experts, those with most rows are told."""


def begun() -> int:
    """Return the time, as recordings have it."""
    return time.monotonic_ns()


def dispatched(ep: Any, received: ReceivedRows, since_ns: int) -> None:
    """Tell whoever records of a dispatch."""
    if not collects():
        return
    g = ep.geometry
    rows, rank = received.routing.counts.tolist(), ep.comm.rank
    _told("experts dispatch", sum(rows) * g.record_bytes, since_ns)
    for q, count in enumerate(rows):
        if count and q != rank:
            _told(f"experts link {rank} to {q}", count * g.record_bytes, since_ns)
    mine = [e for e, owner in enumerate(g.owner) if owner == rank]
    most = np.argsort(-received.counts, kind="stable")[:_MOST_LOADS]
    for nth in sorted(most.tolist()):
        if count := int(received.counts[nth]):
            _told(f"experts load {mine[nth]}", count * g.row_bytes, since_ns)


def combined(ep: Any, received: ReceivedRows, since_ns: int) -> None:
    """Tell whoever records of a combine, whose rows go back."""
    if not collects():
        return
    g, rank = ep.geometry, ep.comm.rank
    by_k = g.order == "k"
    matrix = received.pair_matrix if by_k else received.row_matrix
    row, rows = g.hidden * g.itemsize, matrix[:, rank].tolist()
    _told("experts combine", sum(rows) * row, since_ns)
    for q, count in enumerate(rows):
        if count and q != rank:
            _told(f"experts link {rank} to {q}, back", count * row, since_ns)


def _told(what: str, nbytes: int, since_ns: int) -> None:
    kind = CallKind(collective=what, nbytes=nbytes, executor="experts", text=what)
    observe(EXPERTS, kind, since_ns, nbytes=nbytes)
