"""Small transfers by a hop that are prepared on both sides: a record each way."""

from __future__ import annotations

import itertools
import time

import numpy as np

from stretto.transfer.copying.words import Status
from stretto.transfer.copying.work import Work
from stretto.transfer.links.link import functions
from stretto.transfer.links.words import Ask, Said
from stretto.transfer.ports import PeerLike

__all__ = ["Quick", "is_small"]

_MOST_BYTES = 64 << 10
_LOOKS = 200
_AWAKE_S = 0.002
_NAP_S = 0.00005
_numbers = itertools.count(1)


def is_small(work: Work) -> bool:
    """Return whether a transfer goes in one piece."""
    return 0 < work.packed_bytes <= _MOST_BYTES


class Quick:
    """Calls that return a status; FAILED: go the long way."""

    def __init__(self, peer: PeerLike, work: Work, kept: int, *, is_put: bool) -> None:
        self._peer, self.work = peer, work
        number = next(_numbers)
        ask = self._ask = np.zeros(Ask.END, np.int64)
        ask[Ask.LINK], ask[Ask.JOB] = peer.link.at, work.job.ctypes.data
        ask[Ask.ROWS], ask[Ask.NBYTES] = work.rows, work.packed_bytes
        ask[Ask.KEPT], ask[Ask.IS_PUT], ask[Ask.TURN] = kept, is_put, number << 32
        ask[Ask.ATTENTION] = peer.engine.loop.attention
        self._at = int(ask.ctypes.data)
        self._unpacks = 0 if is_put else int(work.job.ctypes.data)
        self._status: int | None = None
        self._call, self._await = functions().quick, functions().await_done
        peer.quick[number] = self

    def __call__(self) -> Status:
        """Do it, and wait until it is done."""
        if self._peer.lost:
            self._peer.give_up()
        said = self._call(self._at)
        return Status(said) if said >= 0 else self._go_on(said)

    def take(self, turn: int) -> None:
        """Take the answer, which somebody else has found."""
        if turn == self._ask[Ask.TURN] and self._ask[Ask.BUSY]:
            link, ask = self._peer.link, self._ask
            rows, nbytes = int(ask[Ask.ROWS]), int(ask[Ask.NBYTES])
            self._status = link.answered(self._unpacks, rows, nbytes)

    def _go_on(self, said: int) -> Status:
        """Wait for what takes longer, or does not even begin at once."""
        loop = self._peer.engine.loop
        while said in (Said.BUSY, Said.COLD):
            self._peer.give_up()
            if said == Said.COLD:
                loop.heat()
            else:
                time.sleep(_NAP_S)
            said = self._call(self._at)
        if said >= 0:
            return Status(said)
        if said == Said.NO_ROOM:
            return Status.FAILED
        try:
            return self._wait()
        finally:
            self._ask[Ask.BUSY] = 0

    def _wait(self) -> Status:
        begun = time.monotonic()
        while self._status is None:
            self._peer.engine.loop.drain()
            self._peer.give_up()
            said = self._await(self._at, _LOOKS)
            if said >= 0:
                return Status(said)
            if time.monotonic() - begun > _AWAKE_S:
                time.sleep(_NAP_S)
        status, self._status = self._status, None
        return Status(status)
