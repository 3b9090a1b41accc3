"""What recordings have of experts: each operation, each link, each expert's load.

Rows of `stretto trace report` and of the studio's Operations; a link's rate is its
bytes over the whole operation. Nothing is counted while nobody records.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from stretto.trace import CallKind, collects, observe

if TYPE_CHECKING:
    from stretto.experts.cpu import ReceivedRows

__all__ = ["EXPERTS", "combined", "dispatched"]

EXPERTS = "experts of rank"
"""Where recordings have them, in place of a communicator."""
_MOST_LOADS = 32
"""Of a rank that has more experts, those with most rows are told."""


def dispatched(ep: Any, received: ReceivedRows, since_ns: int) -> None:
    """Tell whoever records of a dispatch."""
    if not collects():
        return
    g = ep.geometry
    rank = ep.comm.rank
    _moved("dispatch", rank, received.routing.counts * g.record_bytes, since_ns)
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
    matrix = received.pair_matrix if g.order == "k" else received.row_matrix
    nbytes = matrix[:, rank] * (g.hidden * g.itemsize)
    _moved("combine", rank, nbytes, since_ns, ", back")


def _moved(what: str, rank: int, nbytes: Any, since_ns: int, back: str = "") -> None:
    """Tell of an operation, and of what goes to each other rank."""
    _told(f"experts {what}", int(nbytes.sum()), since_ns)
    for q, many in enumerate(nbytes.tolist()):
        if many and q != rank:
            _told(f"experts link {rank} to {q}{back}", many, since_ns)


def _told(what: str, nbytes: int, since_ns: int) -> None:
    kind = CallKind(collective=what, nbytes=nbytes, executor="experts", text=what)
    observe(EXPERTS, kind, since_ns, nbytes=nbytes)
