"""The epochs of an engine's memory, and who writes under them: leases, and their end.

So memory is taken back in one place. It gets a new epoch, then whoever takes it back
waits until neither a peer nor a GPU says that it writes under the old one. A writer
says so first, and then looks whether the epoch still holds: one of the two sees the
other.
"""

from __future__ import annotations

import secrets
import struct
import threading
import time
from collections.abc import Callable, Sequence

from stretto.errors import CallError, EngineLost, TransferTimeout
from stretto.fabric.patience import check_timeout
from stretto.transfer.links.counterpart import Counterpart
from stretto.transfer.loader import functions
from stretto.transfer.memory.board import FIRST_EPOCH, FIRST_GIVEN, SLOTS, Board

MOST_TOKENS = SLOTS - FIRST_GIVEN
"""How many leases of tokens that were made elsewhere an engine has at once."""

_TOKEN = struct.Struct("<2q")
_LOOK_S = 0.0001


class Leases:
    """Those of one engine; `writers` returns who may write to its memory."""

    def __init__(self, writers: Callable[[], Sequence[Counterpart]]) -> None:
        self.board, self._writers = Board(), writers
        self._on_gpu: dict[int, int] = {}
        """How many parts a GPU writes under each epoch."""
        self._lock = threading.Lock()
        self.refusal: EngineLost | None = None
        """Why nothing of it is of use in a forked child."""

    def begin(self, token: bytes = b"") -> Lease:
        """Return the right to use memory of ours; a `token` is of `new_token`."""
        return Lease(self, *self.board.begin(read_token(token) if token else None))

    def note(self, epoch: int, more: int) -> None:
        """Note that a GPU begins, or has ended, to write a part under an epoch."""
        with self._lock:
            self._on_gpu[epoch] = count = self._on_gpu.get(epoch, 0) + more
            if not count:
                del self._on_gpu[epoch]

    def renew(self, slot: int, epoch: int, timeout: float) -> int:
        """Give a slot a new epoch, and wait until nobody writes under the old one."""
        if self.refusal is not None:
            raise self.refusal
        fresh = self.board.renew(slot)
        self._fence_off(epoch, timeout)
        return fresh

    def end(self, slot: int, epoch: int, timeout: float) -> None:
        """Take back what a slot stands for: nothing is written under its epoch then."""
        self.renew(slot, epoch, timeout)
        self.board.end(slot)

    def _fence_off(self, epoch: int, timeout: float) -> None:
        """Wait until nobody says that it writes to memory of an epoch."""
        check_timeout(timeout, "taking memory back")
        call = functions()
        call.fence_now()
        until = time.monotonic() + timeout
        while epoch in self._on_gpu:
            if time.monotonic() > until:
                raise _late("the GPU", timeout, "let the memory rest")
            time.sleep(_LOOK_S)
        for peer in self._writers():
            while call.marked(peer.link.marks, epoch) and not peer.is_dead():
                if time.monotonic() > until:
                    advice = "let the memory rest, or end it"
                    error = _late(f"engine {peer.name!r}", timeout, advice)
                    error.peer = peer.name
                    raise error
                time.sleep(_LOOK_S)


def _late(who: str, timeout: float, advice: str) -> TransferTimeout:
    return TransferTimeout(
        f"{who} still writes to memory that was taken back, after {timeout:g} s; "
        f"{advice}"
    )


class Lease:
    """See `Engine.lease`: pass `token` to a peer, which passes it with its puts."""

    def __init__(self, leases: Leases, slot: int, epoch: int) -> None:
        self._leases, self.slot, self.epoch = leases, slot, epoch
        self._is_over = False

    def __repr__(self) -> str:
        """Return whether it holds; its token is for peers, not for a log."""
        return f"<Lease {self.slot}, {'ended' if self._is_over else 'held'}>"

    @property
    def token(self) -> bytes:
        """Return 16 bytes that stand for it."""
        return _TOKEN.pack(self.slot, self.epoch)

    def end(self, timeout: float = 5.0) -> None:
        """Take it back: when this returns, nothing is written under it any more.

        TransferTimeout names a peer that still writes: the memory must rest until then.
        """
        check_timeout(timeout, "lease.end")
        if not self._is_over:
            self._leases.end(self.slot, self.epoch, timeout)
            self._is_over = True

    def __enter__(self) -> Lease:
        """Hold it for a while."""
        return self

    def __exit__(self, *error: object) -> None:
        """Take it back, unless a child that was forked meanwhile comes by here."""
        if self._leases.refusal is None:
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
