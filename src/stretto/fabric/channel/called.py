"""A channel's hop whose calls need the interpreter's lock: they are not compiled.

Its calls take a lock of Python's, never one that compiled functions spin for: who holds
the interpreter's lock and spins would wait for ever for who needs it. That is why the
calls that every hop has for compiled code do not serve a channel, which spins.

What this end has taken is told with the next record, or when nothing follows. And some
of these hops wake nobody: who sleeps looks again after a part of the time for which
nothing has come. After a long silence a peer is roused by its other connection.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from stretto.fabric.channel.ways import ChannelWay
from stretto.fabric.channel.words import RECORD, RING, SLOTS, Word
from stretto.fabric.hop import MORE, Hop
from stretto.fabric.memory import bytes_at, word_at

_EVERY = SLOTS // 8
"""Records after which the peer is told how many were taken."""
_PART, _SHORTEST_S, _LONGEST_S = 16, 50e-6, 100e-3
_SPIN_S = 100e-6
"""After which who looks begins to nap."""
_SILENCE_S = 2e-3
"""After which a peer is roused: until then its naps are short."""
_NO_WORDS = (0, 0, 0)


class CalledWay(ChannelWay):
    """See the module."""

    def __init__(self, words: NDArray[np.int64], hop: Hop, peer: int) -> None:
        """Go by a hop to one of its peers."""
        super().__init__(words)
        self._hop, self._peer, out = hop, peer, self.out
        self._tail, self._read = word_at(out + Word.TAIL), word_at(out + Word.HEAD)
        self._head = word_at(self.inner + Word.HEAD)
        self._told = 0
        self._owed: dict[int, int] = {}
        """Words of the peer's that shall be raised, and to what."""
        self.lock = threading.RLock()
        self.naps = not (hop.is_armed or hop.descriptors)
        """Whether nothing wakes who waits for it."""
        self.rouse: Callable[[], None] = _nobody
        """Rouse the peer, and the thread here that looks at this link."""
        self._stirred = time.monotonic()

    def post(self, record: int) -> int:
        """Post a record; 0: there is no room yet."""
        with self.lock:
            nth = int(self._tail[0])
            if not self._hop.is_usable or nth - int(self._read[0]) >= SLOTS:
                return 0
            place = RING + nth % SLOTS * RECORD
            source = self.out + place
            bytes_at(source, RECORD)[:] = bytes_at(record, RECORD)
            if not self._hop.put(self._peer, MORE, source, place, RECORD):
                return 0
            # What was put without its signal is put again: nobody looked at it. TAIL is
            # raised last, and by what raises it all before it has landed.
            if not self._pay(MORE) or not self._raise(0, Word.TAIL, nth + 1):
                return 0
            self._tail[0] = nth + 1
            is_silent = time.monotonic() - self._stirred > _SILENCE_S
            self.stir()
        # Outside of the lock: to rouse may send, and that may come back here.
        if is_silent and self.naps:
            self.rouse()
        return 1

    def put(self, source: int, offset: int, nbytes: int) -> bool:
        """Begin a put; a record announces it. False: there is no room yet."""
        with self.lock:
            if not self._hop.is_usable:
                return False
            return self._hop.put(self._peer, MORE, source, offset, nbytes)

    def tell(self, word: int, value: int) -> bool:
        """Store the word here, and owe it to the peer."""
        word_at(self.inner + word)[0] = value
        with self.lock:
            offset = self.half + word
            self._owed[offset] = max(value, self._owed.get(offset, 0))
        return True

    def settle(self) -> None:
        """Tell the peer what it is owed; what has no room, later."""
        with self.lock:
            taken = int(self._head[0])
            if taken - self._told >= _EVERY:
                self._owed[self.half + Word.HEAD] = self._told = taken
            if self._owed and self._hop.is_usable:
                self._pay()

    def _pay(self, more: int = 0) -> bool:
        for offset, value in list(self._owed.items()):
            # Only the last of them sends: the others wait for it, and go along.
            is_last = not more and len(self._owed) == 1
            if not self._raise(0 if is_last else MORE, offset, value):
                return False
            del self._owed[offset]
        return True

    def _raise(self, lane: int, offset: int, value: int) -> bool:
        words = lane, offset, value, Word.SIDE, _NO_WORDS
        return self._hop.signal(self._peer, *words)

    def progress(self) -> int:
        """Send and receive what can be; return how much was done."""
        with self.lock:
            moved = self._hop.progress()
        if moved:
            self.stir()
        return moved

    def stir(self) -> None:
        """Note that more is likely to come soon."""
        self._stirred = time.monotonic()

    def nap_s(self, now: float) -> float:
        """Return how long who waits may sleep before it looks again."""
        silence = now - self._stirred
        if silence < _SPIN_S:
            return 0.0
        return min(max(silence / _PART, _SHORTEST_S), _LONGEST_S)

    def arm(self) -> bool:
        """Have descriptors wake who sleeps, where there are some."""
        with self.lock:
            return self.naps or self._hop.is_armed or self._hop.arm()

    def close(self) -> None:
        """End the connection."""
        with self.lock:
            self._hop.close()


def _nobody() -> None:
    """Rouse nobody."""
