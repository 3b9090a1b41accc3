"""The epochs of an engine's memory: one word for each lease, which peers map.

An epoch is used once in an engine's life. Memory is given to somebody else by giving
its lease a new epoch, and then waiting until no peer says that it writes to the old.
"""

from __future__ import annotations

import threading

from stretto.errors import CallError
from stretto.fabric.memory import Shared, word_at

BOARD_BYTES = 1 << 16
SLOTS = BOARD_BYTES // 8
FIRST_GIVEN = SLOTS // 2
"""From this slot on, leases are those whose tokens somebody else has made up."""
FIRST_EPOCH = 1 << 60
"""Their epochs: random ones, from this on."""


class Board:
    """Our leases."""

    def __init__(self) -> None:
        self.shared = Shared(BOARD_BYTES)
        self._words = self.shared.array.view("int64")
        self._free = list(range(FIRST_GIVEN - 1, -1, -1))
        self._given: set[int] = set()
        self._next = 1
        self._lock = threading.Lock()

    def begin(self, given: tuple[int, int] | None = None) -> tuple[int, int]:
        """Return a new lease's slot and epoch; those that were made elsewhere."""
        if given is not None:
            return self._take(*given)
        with self._lock:
            if not self._free:
                raise CallError(f"more than {FIRST_GIVEN} leases at once; end some")
            slot = self._free.pop()
        return slot, self.renew(slot)

    def _take(self, slot: int, epoch: int) -> tuple[int, int]:
        """Begin a lease of a slot and an epoch that somebody else has made up."""
        if not FIRST_GIVEN <= slot < SLOTS or epoch < FIRST_EPOCH:
            raise CallError(f"a lease of slot {slot} and epoch {epoch}; want a new one")
        with self._lock:
            if slot in self._given:
                raise CallError(f"lease {slot} has not ended yet; end it first")
            self._given.add(slot)
            self._words[slot] = epoch
        return slot, epoch

    def renew(self, slot: int) -> int:
        """Give a slot a new epoch, and return it."""
        with self._lock:
            epoch, self._next = self._next, self._next + 1
            self._words[slot] = epoch
        return epoch

    def end(self, slot: int) -> None:
        """Let a slot be used for another lease; its epoch was ended before."""
        with self._lock:
            if slot >= FIRST_GIVEN:
                self._given.discard(slot)
            else:
                self._free.append(slot)

    def is_now(self, slot: int, epoch: int) -> bool:
        """Return whether a slot has an epoch."""
        return 0 <= slot < SLOTS and int(self._words[slot]) == epoch


class PeerBoard:
    """A peer's leases on this host."""

    def __init__(self, shared: Shared) -> None:
        self._shared = shared

    def address(self, slot: int) -> int:
        """Return where the epoch of a slot lies."""
        if not 0 <= slot < SLOTS:
            raise CallError(f"lease {slot} is none: a board has {SLOTS}")
        return self._shared.address + 8 * slot

    def epoch(self, slot: int) -> int:
        """Return the epoch that a slot has now."""
        return int(word_at(self.address(slot))[0])
