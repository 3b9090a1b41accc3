"""What ranks tell one another about a measurement, outside of all that is timed."""

from __future__ import annotations

import json
from typing import Any

import numpy as np

from stretto.calls import Communicator

__all__ = ["Control"]


class Control:
    """Small messages between all ranks; every method is collective."""

    def __init__(self, comm: Communicator) -> None:
        self._comm = comm
        self.rank, self.num_ranks = comm.rank, comm.num_ranks
        self.words = 0
        """How often the ranks have told one another something: a time they agree on."""

    def gather(self, value: Any) -> list[Any]:
        """Return everybody's value, by rank; what JSON can carry."""
        self.words += 1
        mine = np.frombuffer(json.dumps(value).encode(), np.uint8)
        sizes = self._comm.all_gather(np.array([mine.size])).ravel().tolist()
        whole = self._comm.all_gather_v(mine, sizes)
        ends = np.cumsum(sizes)[:-1]
        return [json.loads(part.tobytes()) for part in np.split(whole, ends)]

    def agree(self, value: Any) -> Any:
        """Return rank 0's value, on every rank."""
        return self.gather(value if self.rank == 0 else None)[0]

    def barrier(self) -> None:
        """Wait for everybody."""
        self.words += 1
        self._comm.barrier()
