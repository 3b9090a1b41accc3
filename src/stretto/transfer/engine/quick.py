"""Transfers by a hop that are prepared on both sides: a record each way, and the bytes.

They go straight between the two memories where runs are long enough, else they are
packed and unpacked, if they are small.
"""

from __future__ import annotations

import itertools
import threading
import time
import weakref
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from stretto.transfer.copying.pieces import are_long, pieces_of
from stretto.transfer.copying.words import Status
from stretto.transfer.copying.work import CopyWork
from stretto.transfer.engine.exchange import Exchange
from stretto.transfer.engine.loop import LinkLoop
from stretto.transfer.links.words import Ask, Kind, Said, Send
from stretto.transfer.loader import functions
from stretto.transfer.ways.staged import Receiving, can_go_straight

__all__ = ["Quick", "quick"]

_MOST_PACKED = 64 << 10
_PREPARE_S = 10.0
_SLEEP_S = 0.001
_NAP_S = 0.00005
_numbers = itertools.count(1)


def quick(
    loop: LinkLoop, peer: Exchange, works: Sequence[CopyWork], header: dict[str, Any],
    pages: NDArray[np.int64] | None, *, is_put: bool,
) -> Quick | None:  # fmt: skip
    """Have a peer keep its half of a transfer ready; None: it goes the long way."""
    link = peer.link
    if not link.is_quick or not works:
        return None
    receiving = None
    straight = link.fields is not None and can_go_straight(works)
    if straight and is_put:
        header["direct"] = straight = are_long(pieces_of(works, is_source=True))
    elif straight:
        receiving = Receiving(peer, list(works))
        opened = receiving.open()
        straight = opened is not None
        header["field"] = 0 if opened is None else opened.offset
    is_small = len(works) == 1 and 0 < works[0].packed_bytes <= _MOST_PACKED
    if not straight and not is_small:
        return None
    kept, field = peer.keep(header, pages).wait(_PREPARE_S)
    if kept >= 0 and (field or is_small):
        return Quick(loop, peer, works, kept, field, receiving, is_put=is_put)
    if kept >= 0:
        peer.unkeep(kept)
    if receiving is not None:
        receiving.close()
    return None


class Quick:
    """What `call` does with the words `at`; a status FAILED: go the long way."""

    def __init__(
        self, loop: LinkLoop, peer: Exchange, works: Sequence[CopyWork], kept: int,
        field: int, receiving: Receiving | None, *, is_put: bool,
    ) -> None:  # fmt: skip
        self._loop, self._peer = loop, peer
        self.work, self._works = works[0], works
        number = next(_numbers)
        ask = self._ask = np.zeros(Ask.END, np.int64)
        ask[Ask.LINK], ask[Ask.JOB] = peer.link.at, self.work.job.ctypes.data
        ask[Ask.ROWS] = self.work.rows
        ask[Ask.NBYTES] = sum(work.packed_bytes for work in works)
        ask[Ask.KEPT], ask[Ask.IS_PUT], ask[Ask.TURN] = kept, is_put, number << 32
        ask[Ask.ATTENTION] = loop.attention
        ask[Ask.CANCEL] = peer.link.gone.ctypes.data
        ask[Ask.FIELD] = field
        if field and is_put:
            self._pieces = pieces_of(works, is_source=True)
            sending, nbytes = ask[Ask.SEND :], int(ask[Ask.NBYTES])
            sending[Send.PIECES] = self._pieces.ctypes.data
            sending[Send.COUNT], sending[Send.TO] = len(self._pieces), field
            sending[Send.CANCEL] = ask[Ask.CANCEL]
            record = Kind.QUICK_PUT, kept, 0, -1, nbytes, 0, field, nbytes
            sending[Send.RECORD :] = record
        self.at = int(ask.ctypes.data)
        self._status: int | None = None
        self._taken = threading.Semaphore(0)
        """Whether somebody else has taken the answer."""
        compiled = functions()
        self.call, self._await = compiled.direct(compiled.quick), compiled.await_done
        peer.quick[number] = self
        weakref.finalize(self, _forget, loop, peer, kept, receiving).atexit = False

    def go_on(self, said: int) -> Status:
        """Return the status of a call, whatever it said."""
        return Status(said) if said >= 0 else self._go_on(said)

    def take(self, turn: int) -> None:
        """Take the answer, which somebody else has found."""
        if turn == self._ask[Ask.TURN] and self._ask[Ask.BUSY]:
            self._status = self._peer.link.answered(self.at)
            self._taken.release()

    def _go_on(self, said: int) -> Status:
        """Wait for what takes longer, or does not even begin at once."""
        while said in (Said.BUSY, Said.COLD):
            self._peer.give_up()
            if said == Said.COLD:
                self._loop.heat()
            else:
                time.sleep(_NAP_S)
            said = self.call(self.at)
        if said >= 0:
            return Status(said)
        if said == Said.LOST:
            self._peer.give_up()
        if said in (Said.NO_ROOM, Said.LOST):
            return Status.FAILED
        try:
            return self._wait(said)
        finally:
            self._ask[Ask.BUSY] = 0

    def _wait(self, said: int) -> Status:
        while True:
            if said >= 0:
                return Status(said)
            taken = self._loop.taken
            if said == Said.OTHER:
                self._loop.drain()
            if self._status is not None:
                status, self._status = self._status, None
                self._taken.acquire(blocking=False)
                return Status(status)
            self._peer.give_up()
            if said == Said.NOT_YET and not self._loop.look(0, taken):
                # Another thread sleeps in the engine's place, and takes what comes.
                self._taken.acquire(timeout=_SLEEP_S)
            said = self._await(self.at)


def _forget(
    loop: LinkLoop, peer: Exchange, kept: int, receiving: Receiving | None
) -> None:
    """Have both sides keep it no more; whoever collects garbage waits for nobody."""

    def forget() -> None:
        peer.unkeep(kept)
        if receiving is not None:
            receiving.close()

    if not peer.lost:
        loop.call(forget)
