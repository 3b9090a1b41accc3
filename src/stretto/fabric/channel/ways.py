"""How bytes, records and words come to a peer: by memory, or by a hop.

A hop whose calls are compiled is used by compiled functions; of the other kind says
`called` more.
"""

from __future__ import annotations

import ctypes
import functools
from abc import ABC, abstractmethod
from types import ModuleType

import numpy as np
from numpy.typing import NDArray

from stretto.fabric.channel.words import ChannelWord
from stretto.fabric.hop import Hop
from stretto.fabric.jit.loading import load
from stretto.fabric.memory import word_at


@functools.cache
def rings() -> ModuleType:
    """Return what posts and takes records; MissingExtraError: it cannot be had."""
    (module,) = load("a channel", "stretto.fabric.channel.rings")
    return module


class ChannelWay(ABC):
    """What a channel asks of what lies between its ends; here is what most answer."""

    def __init__(self, words: NDArray[np.int64]) -> None:
        """Serve the channel of these words."""
        self.at = int(words.ctypes.data)
        self.inner, self.out = map(int, words[[ChannelWord.IN, ChannelWord.OUT]])
        self.half = int(words[ChannelWord.HALF_BYTES])

    def post(self, record: int) -> int:
        """Post a record; 0: no room yet, 1: done, 3: and its reader sleeps."""
        return int(rings().post(self.at, record))

    @abstractmethod
    def put(self, source: int, offset: int, nbytes: int) -> bool:
        """Begin to bring bytes to the peer's half; False: try later."""

    @abstractmethod
    def tell(self, word: int, value: int) -> bool:
        """Let the peer see a word of our in half that has grown; False: try later."""

    def settle(self) -> None:  # noqa: B027 - most have nothing to go on with
        """Go on with what nobody waits for."""

    def progress(self) -> int:
        """Send and receive what can be; return how much was done."""
        return 0

    def arm(self) -> bool:
        """Have descriptors wake who sleeps; False: something is there."""
        return True

    def close(self) -> None:  # noqa: B027 - shared memory has no connection
        """End the connection, if there is one."""


class SharedWay(ChannelWay):
    """The peer maps the very same memory."""

    def put(self, source: int, offset: int, nbytes: int) -> bool:
        """Copy bytes, unless they lie there already."""
        if nbytes and source != self.out + offset:
            ctypes.memmove(self.out + offset, source, nbytes)
        return True

    def tell(self, word: int, value: int) -> bool:
        """Store the word: the peer reads this very one."""
        word_at(self.inner + word)[0] = value
        return True


class CompiledWay(ChannelWay):
    """A hop whose calls are compiled: one thread at a time is in them."""

    def __init__(self, words: NDArray[np.int64], hop: Hop, peer: int) -> None:
        """Go by a hop to one of its peers."""
        super().__init__(words)
        self._hop = hop
        hop.write_calls(words, ChannelWord.CONTEXT)
        words[ChannelWord.PEER], words[ChannelWord.LANES] = peer, hop.lanes
        self._lock = self.at + ChannelWord.HOP_LOCK.at

    def put(self, source: int, offset: int, nbytes: int) -> bool:
        """Begin to put bytes; they stay as they are until they have been read."""
        return bool(rings().far_put(self.at, source, offset, nbytes, 0))

    def tell(self, word: int, value: int) -> bool:
        """Store the word here, and raise the peer's."""
        word_at(self.inner + word)[0] = value
        return bool(rings().far_signal(self.at, self.half + word, value))

    def progress(self) -> int:
        """Send and receive what can be, unless another thread is at it."""
        return int(rings().progress(self.at))

    def arm(self) -> bool:
        """Have the hop's descriptors wake who sleeps."""
        if self._hop.is_armed:
            return True
        with rings().held(self._lock):
            return bool(self._hop.arm())

    def close(self) -> None:
        """End the connection; nobody is in one of its calls then."""
        with rings().held(self._lock):
            self._hop.close()
