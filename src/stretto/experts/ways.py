"""How rows get from rank to rank on CPUs: into memory that peers map, or by a call.

Rows are stored where they are to lie, and then a small all_gather tells everybody what
there is: whoever has heard all ranks has all rows. There are two inboxes, used in turn.
Whoever starts operation e + 2 has heard all ranks in e + 1, and so all have left e.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from stretto.runtime.calls import Communicator

__all__ = ["CallWay", "MemoryWay", "before", "past_caches", "way_of"]

Line = NDArray[np.int64]
_CACHED = 1 << 22
"""Bytes that are more likely read from a cache than not."""


class MemoryWay:
    """Rows are stored in the inboxes of peers, which this process maps."""

    def __init__(self, comm: Communicator, nbytes: int) -> None:
        """Make the inboxes (collective)."""
        self._mine = comm.empty((2, nbytes), "uint8")
        self._peers = comm.peers(self._mine)
        bases = [[int(p[i].ctypes.data) for p in self._peers] for i in range(2)]
        self._bases = np.array(bases, np.int64)
        self._rank = comm.rank

    def open(self, turn: int, sizes: Line, starts: Line) -> Line:
        """Return where to store what goes to each rank.

        So many bytes go there, to begin at `starts` of its inbox.
        """
        places: Line = self._bases[turn] + starts
        return places

    def close(self, turn: int, matrix: NDArray[np.int64], starts: Line) -> Line:
        """Return where what came from each rank begins; `matrix` has all sizes."""
        places: Line = self._bases[turn, self._rank] + starts
        return places

    def inbox(self, turn: int) -> NDArray[np.uint8]:
        """Return what came."""
        found: NDArray[np.uint8] = self._mine[turn]
        return found


class CallWay:
    """Rows are stored here, and an all_to_all_v brings them: to other hosts, too."""

    def __init__(self, comm: Communicator, nbytes: int, out: int) -> None:
        """Have an inbox, and an outbox of so many bytes."""
        self._comm = comm
        self._out, self._in = np.empty(out, np.uint8), np.empty(nbytes, np.uint8)

    def open(self, turn: int, sizes: Line, starts: Line) -> Line:
        """Return places of the outbox, one part after the other."""
        return int(self._out.ctypes.data) + before(sizes)

    def close(self, turn: int, matrix: NDArray[np.int64], starts: Line) -> Line:
        """Move what is in the outboxes, and return where it begins."""
        rank = self._comm.rank
        goes, comes = int(matrix[rank].sum()), matrix[:, rank]
        self._comm.all_to_all_v(
            self._out[:goes], matrix.reshape(-1), out=self._in[: int(comes.sum())]
        )
        return int(self._in.ctypes.data) + before(comes)

    def inbox(self, turn: int) -> NDArray[np.uint8]:
        """Return what came."""
        return self._in


def way_of(comm: Communicator, nbytes: int, out: int) -> MemoryWay | CallWay:
    """Return how rows get to the ranks of a communicator (collective)."""
    if comm.hosts:
        return CallWay(comm, nbytes, out)
    return MemoryWay(comm, nbytes)


def before(sizes: Line) -> Line:
    """Return the sum of all sizes before each."""
    return np.cumsum(sizes) - sizes


def past_caches(rows: Line, row_bytes: int) -> int:
    """Return 1 where so many rows had better not go through the caches."""
    return int(rows.sum() * row_bytes > _CACHED)
