"""What ranks tell one another about a measurement, outside of all that is timed."""

from __future__ import annotations

import functools
import json
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np

from stretto.runtime.calls import Communicator
from stretto.trace import MONOTONIC

_BOOT = Path("/proc/sys/kernel/random/boot_id")
_APART_US = 1e6
"""Clocks that differ by more, when all have just met, are not one clock."""


class Control:
    """Small messages between all ranks; every method is collective."""

    def __init__(self, comm: Communicator | None = None) -> None:
        """Speak by a communicator; without one there is one rank only."""
        self._comm = comm
        self.rank, self.num_ranks = (comm.rank, comm.num_ranks) if comm else (0, 1)
        self.words = 0
        """How often the ranks have told one another something: a time they agree on."""

    def gather(self, value: Any) -> list[Any]:
        """Return everybody's value, by rank; what JSON can carry."""
        self.words += 1
        if self._comm is None:
            return [value]
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
        if self._comm is not None:
            self._comm.barrier()

    @functools.cached_property
    def has_one_clock(self) -> bool:
        """Return whether all ranks read the same clock: they run on one kernel."""
        boot = ""
        with suppress(OSError):
            boot = _BOOT.read_text(encoding="ascii").strip()
        self.barrier()
        told = self.gather([boot, MONOTONIC.now_us()])
        times = [us for _, us in told]
        is_one = len({boot for boot, _ in told}) == 1 and bool(boot)
        return is_one and max(times) - min(times) < _APART_US
