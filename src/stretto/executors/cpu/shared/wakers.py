"""Ranks of one host wake each other, where they also wait for other hosts.

Who waits for another host sleeps until its network stirs. A peer of this host announces
itself in memory, which wakes nobody. So each rank has a descriptor, too, on which its
peers here write once they have announced something and see that it sleeps.
"""

from __future__ import annotations

import os
from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from stretto.executors.cpu.shared.slab import ASLEEP, Slab
from stretto.executors.cpu.words import Common

__all__ = ["Wakers"]


class Wakers:
    """A rank's descriptor, and those of its peers on this host."""

    def __init__(self) -> None:
        """Make a descriptor; -1 where the system has none."""
        has = hasattr(os, "eventfd")
        self.number = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC) if has else -1
        self._peers: list[int] = []
        self._table: NDArray[np.int64] | None = None

    def share(self) -> tuple[int, ...]:
        """Return what peers of this host need: a copy, for who gives it to them."""
        return (os.dup(self.number),) if self.number >= 0 else ()

    def connect(
        self,
        words: NDArray[np.int64],
        rank: int,
        slabs: Mapping[int, Slab],
        numbers: Mapping[int, int],
    ) -> None:
        """Tell the interpreter by which descriptor each rank of this host is woken.

        Unless all have one: who cannot be woken may not sleep for long.
        """
        if self.number < 0 or len(numbers) < len(slabs):
            return
        table = np.zeros((max(slabs) + 1, 2), dtype=np.int64)
        for peer, slab in slabs.items():
            if peer != rank:
                self._peers.append(os.dup(numbers[peer]))
                table[peer] = slab.address + ASLEEP, self._peers[-1]
        self._table = table
        words[Common.ASLEEP] = slabs[rank].address + ASLEEP
        words[Common.WAKE] = self.number
        words[Common.WAKERS] = table.ctypes.data

    def close(self) -> None:
        """Close the descriptors; nobody is woken after that."""
        for number in (*self._peers, *((self.number,) if self.number >= 0 else ())):
            os.close(number)
        self._peers, self.number = [], -1
