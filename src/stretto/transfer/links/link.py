"""One end of a link: post and take records, and stage bytes for the peer."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from stretto.fabric.channel import Channel, Record
from stretto.fabric.channel.words import RECORD_WORDS, ChannelWord, Word
from stretto.fabric.hop import Hop
from stretto.fabric.memory import Mapping, bytes_at, word_at
from stretto.fabric.wire import Descriptor
from stretto.transfer.links.fields import Fields, Opened
from stretto.transfer.links.notices import notice, tag_hash
from stretto.transfer.links.staging import Staging
from stretto.transfer.links.words import (
    HALF_BYTES,
    MARKS,
    MOST_KEPT,
    MOST_SENDS,
    NUM_MARKS,
    STAGE,
    STAGE_BYTES,
    Block,
    Kept,
    Send,
)  # fmt: skip
from stretto.transfer.loader import functions

__all__ = ["Link", "Record", "notice", "tag_hash"]

_TAKEN_S = 1.0


class Link(Channel):
    """A channel with a stage, and with what a peer has prepared and is sent straight.

    `fields` is where a far peer may put to, without the stage; None: nowhere.
    """

    def __init__(
        self, memory: Mapping, *, is_first: bool, hop: Hop | None = None,
        wake: Descriptor | None = None, fields: Fields | None = None,
    ) -> None:  # fmt: skip
        """Use the memory of a channel; its rights and its end are the channel's."""
        super().__init__(
            memory, HALF_BYTES, is_first=is_first, hop=hop, wake=wake,
            num_words=int(Block.END),
        )  # fmt: skip
        self._pop = functions().pop
        self.is_quick = hop is not None and self.by_python is None
        """Whether the compiled functions place bytes, too."""
        self._own_marks = np.zeros(NUM_MARKS, np.int64)
        own = int(self._own_marks.ctypes.data)
        self.marks = own if hop is not None else self.inner + MARKS
        """Where it is said who writes to our memory; a far peer cannot reach it."""
        self.fields = fields
        if fields is not None and self.is_quick:
            self._block[Block.FIELDS] = fields.address
        self.staging = Staging(self.at + Block.STAGE_LOCK.at if self.is_quick else 0)
        """Held from placing bytes in the stage until they are announced."""
        self._kept = np.zeros((MOST_KEPT if self.is_quick else 1, Kept.END), np.int64)
        self._keeps: dict[int, Any] = {}
        self._free_kept = list(range(MOST_KEPT - 1, -1, -1))
        self._block[Block.KEPT] = self._kept.ctypes.data
        self._sends = np.zeros((MOST_SENDS if self.is_quick else 1, Send.END), np.int64)
        self._block[Block.SENDS] = self._sends.ctypes.data
        self.taking = threading.RLock()
        """Held by who takes records, and does what they ask for."""
        self._held: deque[tuple[int, object]] = deque()
        """What is read by sends that were begun, and the number of each."""
        self._staged = word_at(self.out + Word.STAGED)

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
        super().settle()
        hop = self.hop
        if hop is None or not self.is_quick:
            return
        functions().push(self.at)
        done = int(self._block[Block.FIRST_SEND])
        while self._held and self._held[0][0] <= done and not hop.busy():
            self._held.popleft()

    def close_field(self, opened: Opened) -> None:
        """Close a field: when this returns, nothing is stored there any more."""
        if opened.is_open:
            lock = self.at + ChannelWord.HOP_LOCK.at
            functions().enter(lock)
            opened.close()
            functions().leave(lock)

    def serve(self) -> None:
        """Do what the record asks for that was taken last; ValueError: it cannot."""
        if not self.is_quick:
            raise ValueError("nothing is kept ready here")
        functions().serve(self.at, int(self._buffer.ctypes.data))

    def answered(self, ask: int) -> int:
        """Take the answer that was taken last; return its status."""
        at = int(self._buffer.ctypes.data)
        return int(functions().answered(self.at, at, ask))

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

    def unplace(self, place: int) -> None:
        """Take back the last place, to which nothing went."""
        self._block[Block.PLACED] = place

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
        """Bring bytes to a place of the peer's stage, if they are not there already.

        They must stay as they are until the peer gives the place back.
        """
        self.put(source, STAGE + place % STAGE_BYTES, nbytes, give_up)

    def give_back(self, place: int, nbytes: int) -> None:
        """Let the peer use a place of the stage, and all before it, again."""
        self.tell(Word.STAGED, place + nbytes)

    @property
    def is_busy(self) -> bool:
        """Return whether something is left to send by the hop."""
        queued = self._block[Block.FIRST_SEND] < self._block[Block.LAST_SEND]
        return self.hop is not None and bool(queued or self.hop.busy())

    def close(self) -> None:
        """End the hop's connection; let go what was queued and kept for the peer.

        Of that some may hold this link: it must not wait for the garbage collector.
        """
        super().close()
        lock = self.at + Block.PUSH_LOCK.at
        functions().enter(lock)
        self._block[Block.FIRST_SEND] = self._block[Block.LAST_SEND]
        functions().leave(lock)
        self._held.clear()
        if self.taking.acquire(timeout=_TAKEN_S):
            self._kept[:, Kept.KIND] = 0
            self._keeps.clear()
            self.taking.release()

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
