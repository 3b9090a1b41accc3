"""Small transfers by a hop that are prepared on both sides: a record each way."""

from __future__ import annotations

import itertools
import threading
import time

from stretto.transfer.copying.words import Status
from stretto.transfer.copying.work import Work
from stretto.transfer.links.link import functions
from stretto.transfer.ports import PeerLike

__all__ = ["Quick", "is_small"]

_MOST_BYTES = 64 << 10
_LOOKS = 200
_AWAKE_S = 0.002
_NAP_S = 0.00005
_turns = itertools.count(1)


def is_small(work: Work) -> bool:
    """Return whether a transfer goes in one piece."""
    return 0 < work.packed_bytes <= _MOST_BYTES


class Quick:
    """Calls that return a status; FAILED: go the long way."""

    def __init__(self, peer: PeerLike, work: Work, kept: int, *, is_put: bool) -> None:
        self._peer, self.work, self._is_put = peer, work, is_put
        self._kept, self._job = kept, int(work.job.ctypes.data)
        self._nbytes, self._rows = work.packed_bytes, work.rows
        self._unpacks = 0 if is_put else self._job
        self._turn = threading.Lock()
        self._status: int | None = None

    def __call__(self) -> Status:
        """Do it, and wait until it is done."""
        with self._turn:
            return self._do()

    def take(self) -> None:
        """Take the answer, which somebody else has found."""
        link = self._peer.link
        self._status = link.answered(self._unpacks, self._rows, self._nbytes)

    def _do(self) -> Status:
        peer, calls, turn = self._peer, functions(), next(_turns)
        peer.give_up()
        link = peer.link
        self._status = None
        peer.quick[turn] = self
        if self._is_put:
            sent = calls.quick_put(
                link.at, self._job, self._rows, self._nbytes, self._kept, turn
            )
        else:
            sent = calls.quick_get(link.at, self._kept, turn)
        if not sent:
            del peer.quick[turn]
            return Status.FAILED
        begun = 0.0
        while self._status is None:
            said = calls.await_done(
                link.at, turn, self._unpacks, self._rows, self._nbytes, _LOOKS
            )
            if said >= 0:
                peer.quick.pop(turn, None)
                return Status(said)
            peer.engine.loop.drain()
            peer.give_up()
            begun = begun or time.monotonic()
            if time.monotonic() - begun > _AWAKE_S:
                time.sleep(_NAP_S)
        return Status(self._status)
