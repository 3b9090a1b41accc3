"""Leases: the right to write to memory of ours, until it is taken back."""

from __future__ import annotations

import struct

from stretto.errors import CallError
from stretto.transfer.ports import EngineLike

__all__ = ["Lease", "read_token"]

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
        if self._is_over:
            return
        self._engine.renew(self.slot, self.epoch, timeout)
        self._is_over = True
        self._engine.board.end(self.slot)

    def __enter__(self) -> Lease:
        """Hold it for a while."""
        return self

    def __exit__(self, *error: object) -> None:
        """Take it back."""
        self.end()


def read_token(token: bytes) -> tuple[int, int]:
    """Return a lease's slot and epoch."""
    if not isinstance(token, bytes) or len(token) != _TOKEN.size:
        raise CallError(f"lease={token!r:.60}; want the 16 bytes of `lease.token`")
    slot, epoch = _TOKEN.unpack(token)
    return slot, epoch
