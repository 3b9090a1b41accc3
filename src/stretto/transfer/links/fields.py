"""The fields of one link: memory of ours that the peer may put to for a while."""

from __future__ import annotations

import threading
from collections import deque

import numpy as np
from numpy.typing import NDArray

from stretto.errors import CallError
from stretto.fabric.hop.fields import Field, offset_of
from stretto.transfer.links.words import MOST_FIELDS


class Fields:
    """The table, and which of its fields are free; those longest free come first."""

    def __init__(self) -> None:
        self._table = np.zeros((MOST_FIELDS, Field.END), np.int64)
        self.address = int(self._table.ctypes.data)
        self._free = deque(range(MOST_FIELDS))
        self._uses = [0] * MOST_FIELDS
        self._lock = threading.Lock()

    def open(
        self, pieces: NDArray[np.int64], *, mark: int = 0, epoch: int = 0,
        want: int = 0, holds: object = None,
    ) -> Opened:  # fmt: skip
        """Open one; `mark` and `epoch` are addresses, see `fabric.hop.fields`."""
        with self._lock:
            if not self._free:
                raise CallError(f"more than {MOST_FIELDS} transfers with one peer")
            index = self._free.popleft()
            self._uses[index] = use = (self._uses[index] + 1) & 0x3FF
        words = self._table[index]
        words[Field.COUNT] = len(pieces)
        words[Field.NBYTES] = pieces[-1, 1] + pieces[-1, 2]
        words[Field.GENERATION] = use
        words[Field.MARK], words[Field.EPOCH], words[Field.WANT] = mark, epoch, want
        words[[Field.CANCEL, Field.LANDED, Field.DROPPED]] = 0
        words[Field.PIECES] = pieces.ctypes.data
        return Opened(self, index, offset_of(index, use), words, (pieces, holds))

    def close(self, index: int) -> None:
        """Close one; nobody puts to it meanwhile."""
        self._table[index, Field.PIECES] = 0
        with self._lock:
            self._free.append(index)


class Opened:
    """A field while it is open."""

    def __init__(
        self, fields: Fields, index: int, offset: int, words: NDArray[np.int64],
        holds: object,
    ) -> None:  # fmt: skip
        self._fields, self._index, self._words = fields, index, words
        self.offset, self._holds = offset, holds
        self.is_open = True
        self.nbytes = int(words[Field.NBYTES])

    @property
    def landed(self) -> int:
        """Return how many bytes have come."""
        return int(self._words[Field.LANDED]) if self.is_open else self._landed

    @property
    def dropped(self) -> int:
        """Return how many of them were not stored."""
        return int(self._words[Field.DROPPED]) if self.is_open else self._dropped

    def close(self) -> None:
        """Close it; nobody puts to it meanwhile: see `Link.close_field`."""
        if self.is_open:
            self._landed, self._dropped = self.landed, self.dropped
            self.is_open = False
            self._fields.close(self._index)
