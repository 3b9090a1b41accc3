"""One end of a link: post and take records, and stage bytes for the peer."""

from __future__ import annotations

import contextlib
import os
import struct
import threading
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from stretto.meeting.wire import Descriptor
from stretto.transfer.copying.plain import bytes_at
from stretto.transfer.links.fields import Fields, Opened
from stretto.transfer.links.notices import notice, tag_hash
from stretto.transfer.links.python_hop import PythonHop
from stretto.transfer.links.staging import Staging, functions
from stretto.transfer.links.words import (
    HALF_BYTES,
    MARKS,
    MOST_KEPT,
    MOST_SENDS,
    NUM_MARKS,
    RECORD_WORDS,
    STAGE,
    STAGE_BYTES,
    Block,
    Kept,
    Kind,
    Send,
    Word,
)
from stretto.transfer.memory.mapping import Shared, word_at

__all__ = ["Link", "Record", "functions", "notice", "tag_hash"]

Record = tuple[int, ...]
_RECORD = struct.Struct("=8q")


class Link:
    """This end of a link; `hop` is where memory is not shared."""

    def __init__(
        self, shared: Shared, *, is_first: bool, hop: Any = None,
        wake: Descriptor | None = None, fields: Fields | None = None,
    ) -> None:  # fmt: skip
        """Use two halves of memory: the first is that of whoever connected."""
        self.hop, self._wake = hop, wake
        self._shared = shared
        first, second = shared.address, shared.address + HALF_BYTES
        here, there = (first, second) if is_first or hop else (second, first)
        self.inner, self.out = here, there
        self._block = np.zeros(Block.END, np.int64)
        self._block[Block.IN], self._block[Block.OUT] = here, there
        self._own_marks = np.zeros(NUM_MARKS, np.int64)
        at = self._own_marks.ctypes.data
        self.marks = here + MARKS if hop is None else int(at)
        """Where it is said who writes to our memory; a far peer cannot reach it."""
        self.fields = fields
        """Where a far peer may put to, without the stage; None: nowhere."""
        self.by_python: PythonHop | None = None
        """What calls the hop, where that is not compiled."""
        if hop is not None:
            self._use(hop, is_first)
        self.at = int(self._block.ctypes.data)
        self.stage_lock = self.at + 8 * Block.STAGE_LOCK
        self.is_quick = hop is not None and hop.calls is not None
        """Whether the compiled functions place bytes, too."""
        self._buffer = np.zeros(16, np.int64)
        self._out_record = np.zeros(8, np.int64)
        self._posting = threading.RLock()
        self.staging = Staging(self)
        """Held from placing bytes in the stage until they are announced."""
        self._kept = np.zeros((MOST_KEPT if self.is_quick else 1, Kept.END), np.int64)
        self._keeps: dict[int, Any] = {}
        self._free_kept = list(range(MOST_KEPT - 1, -1, -1))
        self._block[Block.KEPT] = self._kept.ctypes.data
        self._sends = np.zeros((MOST_SENDS if self.is_quick else 1, Send.END), np.int64)
        self._block[Block.SENDS] = self._sends.ctypes.data
        self._held: deque[tuple[int, object]] = deque()
        """What is read by sends that were begun, and the number of each."""
        self._staged = word_at(there + Word.STAGED)
        self._given = word_at(here + Word.STAGED)
        self.asleep = word_at(here + Word.ASLEEP)
        self.gone = np.zeros(1, np.int64)
        """Not 0 when the peer is lost: everything under way is cancelled by it."""

    def _use(self, hop: Any, is_first: bool) -> None:
        calls = hop.calls
        self.peer_rank = int(is_first)
        if calls is None:
            self.by_python = PythonHop(hop, self.peer_rank, self.inner, self.out)
            return
        for word, value in (
            (Block.CONTEXT, calls.context),
            (Block.PUT, calls.put),
            (Block.SIGNAL, calls.signal),
            (Block.PROGRESS, calls.progress),
            (Block.BUSY, calls.busy),
            (Block.WAIT, calls.wait),
            (Block.PEER, self.peer_rank),
            (Block.LANES, hop.lanes),
            (Block.FIELDS, 0 if self.fields is None else self.fields.address),
        ):
            self._block[word] = value

    # Records.

    def post(self, record: bytes, give_up: Callable[[], None]) -> None:
        """Post a record; while there is no room, `give_up` may raise: it is in vain."""
        with self._posting:
            self._out_record[:] = np.frombuffer(record, np.int64)
            at = int(self._out_record.ctypes.data)
            while not (said := self._post(at)):
                give_up()
                self.progress()
                os.sched_yield()
        if said > 1:
            self.wake()

    def _post(self, at: int) -> int:
        if self.by_python is not None:
            return self.by_python.post(at)
        return int(functions().post(self.at, at))

    def say(self, kind: Kind, *words: int, give_up: Callable[[], None]) -> None:
        """Post a record of words."""
        fill = (0,) * (7 - len(words))
        self.post(_RECORD.pack(kind, *words, *fill), give_up)

    def records(self) -> Iterator[Record]:
        """Take the records that have come."""
        at = int(self._buffer.ctypes.data)
        while functions().pop(self.at, at):
            yield tuple(self._buffer[:8].tolist())

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

    # What a peer has prepared.

    def keep(
        self, nbytes: int, *, is_put: bool, field: int = 0, work: Any = None,
        pieces: NDArray[np.int64] | None = None, guard: tuple[int, int] = (0, 0),
        holds: object = None,
    ) -> int:  # fmt: skip
        """Keep a transfer ready for a peer; return its number, or -1: there are many.

        It goes by a field, ours of a put and the peer's of a get; or by `work`.
        """
        if not self._free_kept:
            return -1
        nth = self._free_kept.pop()
        kept = self._kept[nth]
        kept[Kept.NBYTES], kept[Kept.FIELD] = nbytes, field
        kept[Kept.JOB] = kept[Kept.ROWS] = kept[Kept.PIECES] = 0
        if work is not None:
            kept[Kept.JOB], kept[Kept.ROWS] = work.job.ctypes.data, work.rows
        if pieces is not None:
            kept[Kept.PIECES], kept[Kept.COUNT] = pieces.ctypes.data, len(pieces)
        kept[Kept.EPOCH], kept[Kept.WANT] = guard
        self._keeps[nth] = work, pieces, holds
        kept[Kept.KIND] = 1 if is_put else 2
        self._block[Block.NUM_KEPT] = max(int(self._block[Block.NUM_KEPT]), nth + 1)
        return nth

    def forget(self, nth: int) -> None:
        """Keep a transfer no more."""
        if self._keeps.pop(nth, None) is not None:
            self._kept[nth, Kept.KIND] = 0
            self._free_kept.append(nth)

    # What goes straight.

    def send(
        self, pieces: NDArray[np.int64], to: int, record: Sequence[int], *,
        cancel: int = 0, guard: tuple[int, int] = (0, 0), holds: object = None,
    ) -> bool:  # fmt: skip
        """Queue pieces for a peer's field, and a record after them; False: it is full.

        `holds` lives as long as they may be read.
        """
        words = np.zeros(Send.END, np.int64)
        words[Send.PIECES], words[Send.COUNT] = pieces.ctypes.data, len(pieces)
        words[Send.TO], words[Send.CANCEL] = to, cancel
        words[Send.EPOCH], words[Send.WANT] = guard
        fill = (0,) * (RECORD_WORDS - len(record))
        words[Send.RECORD :] = *record, *fill
        number = int(functions().send(self.at, int(words.ctypes.data)))
        if number:
            self._held.append((number, (pieces, holds)))
        return bool(number)

    def settle(self) -> None:
        """Go on with what is queued, and let go what has been read."""
        if self.by_python is not None:
            self.by_python.pay()
        if not self.is_quick:
            return
        functions().push(self.at)
        done = int(self._block[Block.FIRST_SEND])
        while self._held and self._held[0][0] <= done and not self.hop.busy():
            self._held.popleft()

    def close_field(self, opened: Opened) -> None:
        """Close a field: when this returns, nothing is stored there any more."""
        if opened.is_open:
            lock = self.at + 8 * Block.HOP_LOCK
            functions().enter(lock)
            opened.close()
            functions().leave(lock)

    def sleep(self, microseconds: int) -> None:
        """Sleep until something comes from a far peer, at most so long."""
        functions().far_wait(self.at, microseconds)

    def serve(self) -> None:
        """Do what the record asks for that was taken last; ValueError: it cannot."""
        if not self.is_quick:
            raise ValueError("nothing is kept ready here")
        functions().serve(self.at, int(self._buffer.ctypes.data))

    def answered(self, ask: int) -> int:
        """Take the answer that was taken last; return its status."""
        at = int(self._buffer.ctypes.data)
        return int(functions().answered(self.at, at, ask))

    @property
    def has_records(self) -> bool:
        """Return whether there are some."""
        return self.come > self.taken

    def wake(self) -> None:
        """Wake the peer's engine."""
        wake = self._wake  # it is open as long as somebody has it
        if wake is not None:
            os.eventfd_write(wake.number, 1)

    def progress(self) -> int:
        """Let the hop send and receive."""
        if self.hop is None:
            return 0
        if self.by_python is not None:
            return self.by_python.progress()
        return int(functions().progress(self.at))

    @property
    def fault(self) -> str:
        """Return how the hop's connection has ended, or nothing."""
        return "" if self.hop is None else self.hop.faults().get(self.peer_rank, "")

    @property
    def wakes(self) -> bool:
        """Return whether what comes by the hop wakes who polls, again and again."""
        return self.is_quick and bool(self.hop.is_armed)

    def arm(self) -> bool:
        """Have the hop's descriptors wake who sleeps; False: something is there."""
        if self.hop is None or self.gone[0] or self.hop.is_armed:
            return True
        if self.by_python is not None:
            return self.by_python.arm()
        with self._using():
            return bool(self.hop.arm())

    @contextlib.contextmanager
    def _using(self) -> Iterator[None]:
        """Keep other threads from the hop, and compiled functions."""
        lock = self.at + 8 * Block.HOP_LOCK
        functions().enter(lock)
        try:
            yield
        finally:
            functions().leave(lock)

    # The stage.

    def place(self, nbytes: int) -> int | None:
        """Return where in the stage so many bytes may go, or None: not yet."""
        begin = int(self._block[Block.PLACED])
        if begin % STAGE_BYTES + nbytes > STAGE_BYTES:
            begin += -begin % STAGE_BYTES
        if begin + nbytes - int(self._staged[0]) > STAGE_BYTES:
            return None
        self._block[Block.PLACED] = begin + nbytes
        return begin

    def out_address(self, place: int) -> int:
        """Return where to write what goes to a place of the stage."""
        return self.out + STAGE + place % STAGE_BYTES

    def fill(self, address: int, data: bytes) -> None:
        """Store bytes at an address of the stage."""
        bytes_at(address, len(data))[:] = np.frombuffer(data, np.uint8)

    def in_address(self, place: int) -> int:
        """Return where to read what came to a place of the stage."""
        return self.inner + STAGE + place % STAGE_BYTES

    def carry(
        self, source: int, place: int, nbytes: int, give_up: Callable[[], None]
    ) -> None:
        """Have a hop bring bytes to the peer's stage; nothing where it is shared.

        They must stay as they are until the peer gives the place back.
        """
        if self.hop is None or not nbytes:
            return
        offset = STAGE + place % STAGE_BYTES
        while True:
            if self.by_python is not None:
                done = self.by_python.put(source, offset, nbytes)
            else:
                done = functions().far_put(self.at, source, offset, nbytes, 0)
            if done:
                return
            give_up()
            self.progress()

    def give_back(self, place: int, nbytes: int) -> None:
        """Let the peer use a place of the stage, and all before it, again."""
        end = place + nbytes
        self._given[0] = end
        if self.hop is None:
            self.wake()  # who waits for room is told by nothing else
            return
        if self.by_python is not None:
            self.by_python.give_back(end)
            return
        offset = HALF_BYTES + Word.STAGED
        while not functions().far_signal(self.at, offset, end):
            if self.gone[0] or self.fault:  # its last words may still be heard
                return
            self.progress()
            os.sched_yield()

    @property
    def is_busy(self) -> bool:
        """Return whether something is left to send by the hop."""
        queued = self._block[Block.FIRST_SEND] < self._block[Block.LAST_SEND]
        return self.hop is not None and bool(queued or self.hop.busy())

    @property
    def is_stuck(self) -> bool:
        """Return whether who sleeps has to look soon, for nothing would wake it."""
        naps = self.by_python is not None and self.by_python.naps
        return not (self.wakes or naps) and self.is_busy

    def disown(self) -> None:
        """Be of no use in a child that this process forks."""
        self.gone[0] = 1
        self._wake = None

    def leave(self) -> bool:
        """Say that no more is written to the peer's memory; False: something still is.

        What begins later sees that the peer is gone, once it has said that it writes.
        """
        functions().fence_now()
        if self.hop is not None or bytes_at(self.out + MARKS, 8 * NUM_MARKS).any():
            return self.hop is not None
        word_at(self.out + Word.LEFT)[0] = 1
        return True

    @property
    def has_left(self) -> bool:
        """Return whether the peer says that it writes to our memory no more."""
        return bool(word_at(self.inner + Word.LEFT)[0])

    is_closed = False

    def close(self) -> None:
        """End the hop's connection; nobody is in one of its calls then."""
        self.gone[0] = 1
        self._wake = None
        if self.by_python is not None:
            self.by_python.close()
        elif self.hop is not None and not self.is_closed:
            with self._using():
                self.hop.close()
        self.is_closed = self.hop is not None
