"""The file of a process in which its rings lie, and where in it they are.

It grows by segments, which are mapped once; rings are cut from them, and the places of
closed ones are used again.
"""

from __future__ import annotations

import contextlib
import json
import os
import threading
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from stretto.errors import SharedMemoryError
from stretto.fabric.memory import PAGE, Mapping, create_file, keep_room, open_file
from stretto.trace.rings import (
    DIRECTORY_BYTES,
    ENTRY_WORDS,
    HEAD_BYTES,
    MAGIC,
    MOST_RINGS,
    NAME,
    TEXT_AT,
    FileWord,
    Ring,
    size_of,
)
from stretto.trace.tables import Comm

SEGMENT_BYTES = 1 << 25
"""By so much the file grows; what is not touched takes no memory."""
KEPT_CLOSED = 8
"""Rings of closed communicators that stay as they are."""


class RingFile:
    """The file of a process: its rings, found by whoever may read the process."""

    def __init__(self, about: dict[str, Any], folder: Path | None = None) -> None:
        """Make it; in a folder it has a name, and is there until it is closed."""
        self.path: Path | None = None
        self._fd = self._make(folder)
        try:
            self._segment, self._used = self._map(0, HEAD_BYTES + DIRECTORY_BYTES)
        except (OSError, SharedMemoryError):
            self.close()
            raise
        self._start = 0
        """Where in the file the last segment begins."""
        self._words: NDArray[np.int64] = self._segment[:HEAD_BYTES].view(np.int64)
        self._entries: NDArray[np.int64] = (
            self._segment[HEAD_BYTES : HEAD_BYTES + DIRECTORY_BYTES]
            .view(np.int64)
            .reshape(-1, ENTRY_WORDS)
        )
        self._words[FileWord.PID] = os.getpid()
        text = json.dumps(about, separators=(",", ":")).encode()
        text = text[: HEAD_BYTES - TEXT_AT - 8]
        body = self._segment[TEXT_AT + 8 :]
        body[: len(text)] = np.frombuffer(text, np.uint8)
        self._words[TEXT_AT // 8] = len(text)
        self._segment[: len(MAGIC)] = np.frombuffer(MAGIC, np.uint8)
        self.rings: list[Ring] = []
        self._free: list[tuple[int, NDArray[np.uint8]]] = []
        self._places: dict[int, tuple[int, NDArray[np.uint8]]] = {}
        self._lock = threading.RLock()  # a finalizer may come in, in this thread

    def _make(self, folder: Path | None) -> int:
        if folder is not None:
            self.path = folder / f"{os.getpid()}.rings"
            return open_file(self.path, is_new=True)
        return create_file(0, NAME)

    def _map(self, at: int, nbytes: int) -> tuple[NDArray[np.uint8], int]:
        """Return a new segment of the file that has such room, and how much it has."""
        size = max(SEGMENT_BYTES, -(-nbytes // PAGE) * PAGE)
        os.ftruncate(self._fd, at + size)
        self._keep_room(at, nbytes)
        return Mapping(self._fd, size, at).array, nbytes

    def _keep_room(self, at: int, nbytes: int) -> None:
        """Take room for what is written: a full disk is no reason for a signal."""
        if self.path is not None:
            keep_room(self._fd, at, nbytes)

    def open(self, comm: Comm, rank: int, capacity: int) -> Ring | None:
        """Return a new ring, or None: there are too many, or there is no memory.

        The place of one that was closed is used again, when others were closed since.
        """
        assert capacity & capacity - 1 == 0, "a power of two"
        with self._lock:
            try:
                place = self._place(size_of(comm, capacity))
            except (OSError, SharedMemoryError):
                return None
            if place is None:
                return None
            entry, memory = place
            ring = Ring(memory, comm, rank, capacity)
            self._places[id(ring)] = place
            self._entries[entry, 2] = 1
            self._words[FileWord.RINGS] = max(
                int(self._words[FileWord.RINGS]), entry + 1
            )
            self.rings.append(ring)
            return ring

    def _place(self, nbytes: int) -> tuple[int, NDArray[np.uint8]] | None:
        """Return an entry of the directory, and memory of zeros."""
        if len(self._free) > KEPT_CLOSED:
            for i, (entry, memory) in enumerate(self._free):
                if nbytes <= len(memory) <= 4 * nbytes:
                    del self._free[i]
                    self._entries[entry, 2] = 0
                    memory[:] = 0
                    return entry, memory
        entry = int(self._words[FileWord.RINGS])
        if entry >= MOST_RINGS:
            return None
        if self._used + nbytes > len(self._segment):
            start = self._start + len(self._segment)
            self._segment, self._used = self._map(start, nbytes)
            self._start, at = start, 0
        else:
            at = self._used
            self._keep_room(self._start + at, nbytes)
            self._used += nbytes
        self._entries[entry, :2] = self._start + at, nbytes
        return entry, self._segment[at : at + nbytes]

    def close_ring(self, ring: Ring) -> None:
        """Let a ring's place be used again, some time; until then it can be read."""
        with self._lock:
            place = self._places.pop(id(ring), None)
            if place is None:
                return
            ring.closed = True
            ring.decoders.clear()
            self.rings.remove(ring)
            self._entries[place[0], 2] = 2
            self._free.append(place)

    def close(self) -> None:
        """Forget the file; rings that somebody holds stay in memory."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1
        if self.path is not None:
            with contextlib.suppress(OSError):
                self.path.unlink()
