"""One end of a channel: bytes, words and records to one peer, and from it."""

from __future__ import annotations

import os
import struct
import threading
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from stretto.fabric.channel.called import CalledWay
from stretto.fabric.channel.ways import ChannelWay, CompiledWay, SharedWay, rings
from stretto.fabric.channel.words import RECORD_WORDS, RING, ChannelWord, Word
from stretto.fabric.hop import Hop, Window
from stretto.fabric.memory import Mapping, bytes_at, word_at
from stretto.fabric.wire import Descriptor

__all__ = ["Channel", "Record", "window_of"]

Record = tuple[int, ...]
_RECORD = struct.Struct(f"={RECORD_WORDS}q")


class Channel:
    """An ordered way to one peer, over shared memory or a carrier.

    What was put has landed when the record after it is taken; records are taken in the
    order in which they were posted, each once. Any thread may post, and any may take.
    """

    is_closed = False

    def __init__(
        self, memory: Mapping, half: int, *, is_first: bool, hop: Hop | None = None,
        wake: Descriptor | None = None, num_words: int = int(ChannelWord.END),
    ) -> None:  # fmt: skip
        """Use two halves of memory: the first is that of whoever connected.

        By a `hop` they are ours alone: the first mirrors what the peer sends, the
        second is what we send. `wake` is written to wake a peer of this host.
        """
        self.hop, self._wake, self._memory = hop, wake, memory
        first, second = memory.address, memory.address + half
        here, there = (first, second) if is_first or hop else (second, first)
        self.inner, self.out, self.peer_rank = here, there, int(is_first)
        self._block = np.zeros(num_words, np.int64)
        self._block[[ChannelWord.IN, ChannelWord.OUT]] = here, there
        self._block[ChannelWord.HALF_BYTES] = half
        self.at = int(self._block.ctypes.data)
        self.by_python: CalledWay | None = None
        """The way, where it is a hop whose calls are Python's."""
        self.way: ChannelWay
        if hop is None:
            self.way = SharedWay(self._block)
        elif hop.carrier.compiled:
            self.way = CompiledWay(self._block, hop, self.peer_rank)
        else:
            self.way = self.by_python = CalledWay(self._block, hop, self.peer_rank)
        self._buffer = np.zeros(2 * RECORD_WORDS, np.int64)
        self._out_record = np.zeros(RECORD_WORDS, np.int64)
        self._posting = threading.RLock()
        self._pop: Callable[[int, int], int] = rings().pop
        self.asleep = word_at(here + Word.ASLEEP)
        self.gone = np.zeros(1, np.int64)
        """Not 0 when the peer is lost: everything under way is cancelled by it."""

    # What goes.

    def post(self, record: bytes, give_up: Callable[[], None]) -> None:
        """Post a record; while there is no room, `give_up` may raise: it is in vain."""
        with self._posting:
            self._out_record[:] = np.frombuffer(record, np.int64)
            at = int(self._out_record.ctypes.data)
            while not (said := self.way.post(at)):
                give_up()
                self.progress()
                os.sched_yield()
        if said > 1:
            self.wake()

    def say(self, kind: int, *words: int, give_up: Callable[[], None]) -> None:
        """Post a record of words."""
        fill = (0,) * (RECORD_WORDS - 1 - len(words))
        self.post(_RECORD.pack(kind, *words, *fill), give_up)

    def put(
        self, source: int, offset: int, nbytes: int, give_up: Callable[[], None]
    ) -> None:
        """Bring bytes to a place of the peer's half; a record announces them.

        They must stay as they are until the peer has said that it has taken them.
        """
        while nbytes and not self.way.put(source, offset, nbytes):
            give_up()
            self.progress()

    def tell(self, word: int, value: int) -> None:
        """Let the peer see a word of ours, such as STAGED; nobody, once it is lost."""
        while not self.way.tell(word, value):
            if self.gone[0] or self.fault:  # its last words may still be heard
                return
            self.progress()
            os.sched_yield()
        if self.hop is None:
            self.wake()  # who waits for room is told by nothing else

    def wake(self) -> None:
        """Wake the peer."""
        wake = self._wake  # it is open as long as somebody has it
        if wake is not None:
            os.eventfd_write(wake.number, 1)

    # What comes.

    def records(self) -> Iterator[Record]:
        """Take the records that have come."""
        at = int(self._buffer.ctypes.data)
        while self._pop(self.at, at):
            yield tuple(self._buffer[:RECORD_WORDS].tolist())

    def read(self, offset: int, nbytes: int) -> bytes:
        """Return a copy of what came to a place of our half."""
        return bytes_at(self.inner + offset, nbytes).tobytes()

    @property
    def posted(self) -> int:
        """Return how many records were posted here."""
        return int(word_at(self.out + Word.TAIL)[0])

    @property
    def come(self) -> int:
        """Return how many records have come from the peer."""
        return int(word_at(self.inner + Word.TAIL)[0])

    @property
    def taken(self) -> int:
        """Return how many of them were taken."""
        return int(word_at(self.inner + Word.HEAD)[0])

    @property
    def has_records(self) -> bool:
        """Return whether there are some."""
        return self.come > self.taken

    # Waiting.

    def settle(self) -> None:
        """Go on with what nobody waits for."""
        self.way.settle()

    def progress(self) -> int:
        """Let the hop send and receive."""
        return self.way.progress()

    def sleep(self, microseconds: int) -> None:
        """Sleep until something comes from a far peer, at most so long."""
        rings().far_wait(self.at, microseconds)

    @property
    def wakes(self) -> bool:
        """Return whether what comes by the hop wakes who polls, again and again."""
        return self.hop is not None and self.by_python is None and self.hop.is_armed

    def arm(self) -> bool:
        """Have the hop's descriptors wake who sleeps; False: something is there."""
        return bool(self.gone[0]) or self.way.arm()

    @property
    def is_busy(self) -> bool:
        """Return whether something is left to send by the hop."""
        return self.hop is not None and bool(self.hop.busy())

    @property
    def is_stuck(self) -> bool:
        """Return whether who sleeps has to look soon, for nothing would wake it."""
        naps = self.by_python is not None and self.by_python.naps
        return not (self.wakes or naps) and self.is_busy

    # Its end.

    @property
    def fault(self) -> str:
        """Return how the hop's connection has ended, or nothing."""
        return "" if self.hop is None else self.hop.faults().get(self.peer_rank, "")

    def disown(self) -> None:
        """Be of no use in a child that this process forks."""
        self.gone[0] = 1
        self._wake = None

    def close(self) -> None:
        """End the hop's connection; nobody is in one of its calls then."""
        self.gone[0] = 1
        self._wake = None
        if not self.is_closed:
            self.way.close()
        self.is_closed = self.hop is not None


def window_of(memory: Mapping, half: int, rank: int, **about: Any) -> Window:
    """Return the window of one end's memory, by which a hop reaches it.

    The end that connected is rank 0; `about` are the other words of a window.
    """
    return Window(
        rank=rank, num_ranks=2, address=memory.address, puts=(RING, half),
        words=(0, half + RING), sources=(half, 2 * half), **about,
    )  # fmt: skip
