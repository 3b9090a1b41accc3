"""Leases: the right to write to memory of ours, until it is taken back."""

from __future__ import annotations

import secrets
import struct
import threading

from stretto.errors import CallError
from stretto.meeting.limits import check_timeout
from stretto.transfer.memory.board import FIRST_EPOCH, FIRST_GIVEN, SLOTS
from stretto.transfer.ports import EngineLike

__all__ = ["MOST_TOKENS", "Lease", "Writing", "new_token", "read_token"]

MOST_TOKENS = SLOTS - FIRST_GIVEN
"""How many leases of tokens that were made elsewhere an engine has at once."""

_TOKEN = struct.Struct("<2q")


class Lease:
    """See `Engine.lease`: pass `token` to a peer, which passes it with its puts."""

    def __init__(self, engine: EngineLike, slot: int, epoch: int) -> None:
        self._engine, self.slot, self.epoch = engine, slot, epoch
        self._is_over = False

    @property
    def token(self) -> bytes:
        """Return 16 bytes that stand for it."""
        return _TOKEN.pack(self.slot, self.epoch)

    def end(self, timeout: float = 5.0) -> None:
        """Take it back: when this returns, nothing is written under it any more.

        TransferTimeout names a peer that still writes: the memory must rest until then.
        """
        check_timeout(timeout, "lease.end")
        if self._is_over:
            return
        self._engine.loop.check()
        self._engine.renew(self.slot, self.epoch, timeout)
        self._is_over = True
        self._engine.board.end(self.slot)

    def __enter__(self) -> Lease:
        """Hold it for a while."""
        return self

    def __exit__(self, *error: object) -> None:
        """Take it back, unless a child that was forked meanwhile comes by here."""
        if not self._engine.is_inherited:
            self.end()


def new_token(number: int) -> bytes:
    """Return a token for `Engine.lease`, made before there is a lease, or elsewhere.

    Of one number, below MOST_TOKENS, an engine has one lease at a time. No two tokens
    are alike: an old one opens nothing, in an engine that was started anew neither.
    """
    if not 0 <= number < MOST_TOKENS:
        raise CallError(f"number={number}; want 0 to {MOST_TOKENS - 1}")
    return _TOKEN.pack(FIRST_GIVEN + number, FIRST_EPOCH + secrets.randbits(60))


def read_token(token: bytes) -> tuple[int, int]:
    """Return a lease's slot and epoch."""
    if not isinstance(token, bytes) or len(token) != _TOKEN.size:
        raise CallError(f"lease={token!r:.60}; want the 16 bytes of `lease.token`")
    slot, epoch = _TOKEN.unpack(token)
    return slot, epoch


class Writing:
    """How many parts a GPU writes under each epoch."""

    def __init__(self) -> None:
        self._counts: dict[int, int] = {}
        self._lock = threading.Lock()

    def note(self, epoch: int, more: int) -> None:
        """Note that it begins, or has ended, to write one."""
        with self._lock:
            self._counts[epoch] = count = self._counts.get(epoch, 0) + more
            if not count:
                del self._counts[epoch]

    def __contains__(self, epoch: object) -> bool:
        """Return whether it writes under an epoch."""
        return epoch in self._counts
