"""Read the rings of another process, or what a dead one left: its last calls.

Nothing is asked of that process, which may be stuck. It goes on writing meanwhile, so
records are copied first, and those that may have been written over are dropped.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from stretto.errors import TraceError
from stretto.trace.facts import read_list
from stretto.trace.rings import (
    DIRECTORY_BYTES,
    ENTRY_WORDS,
    HEAD_BYTES,
    KIND_BYTES,
    KINDS,
    MAGIC,
    NAME,
    RECORD_WORDS,
    RING_WORDS,
    TEXT_AT,
    WAITS_BYTES,
    FileWord,
    RingWord,
)
from stretto.trace.tables import (
    CALL,
    STATES,
    CallKind,
    Comm,
    LaneWait,
    RankInfo,
    Recording,
    Table,
)

_MOST_BYTES = 1 << 34


def snapshot_of_pid(pid: int) -> Recording:
    """Return the last calls of a process of this host."""
    folder = Path(f"/proc/{pid}/fd")
    try:
        links = [(link, _target(link)) for link in folder.iterdir()]
    except FileNotFoundError:
        raise TraceError(f"pid {pid}: there is no such process here") from None
    except PermissionError:
        raise TraceError(
            f"pid {pid} belongs to another user; want its owner, or root"
        ) from None
    except OSError as e:
        raise TraceError(f"pid {pid}: {e.strerror}") from None
    for link, to in links:
        if NAME in to or to.removesuffix(" (deleted)").endswith(".rings"):
            return snapshot(link, f"pid {pid}")
    raise TraceError(
        f"pid {pid} has no communicator of stretto that records: it has none yet, it "
        "runs under STRETTO_TRACE=0, or it is the launcher of its ranks"
    )


def _target(link: Path) -> str:
    try:
        return str(link.readlink())
    except FileNotFoundError:  # closed meanwhile
        return ""


def snapshot(path: Path, name: str = "") -> Recording:
    """Return the last calls that lie in the file of a process."""
    name = name or str(path)
    try:
        fd = os.open(path, os.O_RDONLY | getattr(os, "O_CLOEXEC", 0))
    except OSError as e:
        raise TraceError(f"{name}: {e.strerror}") from None
    try:
        return _Reader(fd, name).recording()
    finally:
        os.close(fd)


class _Reader:
    def __init__(self, fd: int, name: str) -> None:
        self._fd, self._name = fd, name
        self._size = os.fstat(fd).st_size
        head = self._bytes(0, HEAD_BYTES)
        if head[: len(MAGIC)] != MAGIC or self._size > _MOST_BYTES:
            raise TraceError(f"{name}: these are no rings of stretto")
        self._head = np.frombuffer(head, np.int64)
        said = head[TEXT_AT + 8 :][: max(0, int(self._head[TEXT_AT // 8]))]
        self._about = read_list(RankInfo, [self._json(said)], f"{name}: head")[0]

    def _bytes(self, at: int, nbytes: int) -> bytes:
        data = b""
        if at >= 0 and 0 <= nbytes <= self._size - at:
            data = os.pread(self._fd, nbytes, at)
        if len(data) != nbytes:
            raise TraceError(
                f"{self._name}: {nbytes} bytes at {at} of {self._size} are not there"
            )
        return data

    def _words(self, at: int, count: int) -> NDArray[np.int64]:
        return np.frombuffer(self._bytes(at, 8 * count), np.int64)

    def _json(self, text: bytes) -> Any:
        try:
            return json.loads(text)
        except (ValueError, RecursionError):
            raise TraceError(f"{self._name}: a text in it is not JSON") from None

    def _text(self, at: int, most: int) -> Any:
        size = int(self._words(at, 1)[0])
        if not 0 <= size <= most:
            raise TraceError(f"{self._name}: a text of {size} bytes at {at}")
        return self._json(self._bytes(at + 8, size)) if size else []

    def recording(self) -> Recording:
        comms: dict[Comm, int] = {}
        kinds: dict[CallKind, int] = {}
        calls: list[Table] = []
        waits: list[LaneWait] = []
        for at in self._rings():
            words = self._words(at, RING_WORDS)
            place = f"{self._name}: ring at {at}"
            said = self._text(at + int(words[RingWord.COMM_AT]), 1 << 24)
            comm = comms.setdefault(read_list(Comm, [said], place)[0], len(comms))
            mine = self._kinds(at + int(words[RingWord.KINDS_AT]), words, place)
            records = self._records(at, words)
            known = np.array([n in mine for n in records[:, 1].tolist()], bool)
            records = records[known]
            rank = int(words[RingWord.RANK])
            if not 0 <= rank < 1 << 31:
                raise TraceError(f"{place}: it is of rank {rank}")
            table = calls_of_records(records, rank, comm)
            numbers = [kinds.setdefault(mine[n], len(kinds)) for n in records[:, 1]]
            table["nbytes"] = [mine[n].nbytes for n in records[:, 1].tolist()]
            table["kind"] = numbers
            calls.append(table)
            waits += self._waits(at, words, comm, place, records)
        return Recording(
            calls=np.concatenate([np.zeros(0, CALL), *calls]),
            ranks=(self._about,),
            comms=tuple(comms),
            kinds=tuple(kinds),
            waits=tuple(waits),
        )

    def _rings(self) -> Iterator[int]:
        count = int(self._head[FileWord.RINGS])
        if not 0 <= count <= DIRECTORY_BYTES // (8 * ENTRY_WORDS):
            raise TraceError(f"{self._name}: it has {count} rings")
        entries = self._words(HEAD_BYTES, count * ENTRY_WORDS)
        for at, _, state, _ in entries.reshape(-1, ENTRY_WORDS).tolist():
            if state in (1, 2):
                yield at

    def _kinds(
        self, at: int, words: NDArray[np.int64], place: str
    ) -> dict[int, CallKind]:
        """Return the last kinds of calls, by their numbers."""
        found = {}
        count = int(words[RingWord.NUM_KINDS])
        if count < 0:
            raise TraceError(f"{place}: {count} kinds of calls")
        for entry in range(min(count, KINDS)):
            number = int(self._words(at + entry * KIND_BYTES, 1)[0]) - 1
            said = self._text(at + entry * KIND_BYTES + 8, KIND_BYTES)
            found[number] = read_list(CallKind, [said], place)[0]
        return found

    def _records(self, at: int, words: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the records that were not written over while they were copied."""
        capacity = int(words[RingWord.MASK]) + 1
        first = at + int(words[RingWord.CALLS_AT])
        if not 0 < capacity <= _MOST_BYTES // (8 * RECORD_WORDS):
            raise TraceError(f"{self._name}: a ring of {capacity} calls")
        raw = self._words(first, capacity * RECORD_WORDS).reshape(-1, RECORD_WORDS)
        head = int(self._words(at, 1)[0])
        seq = raw[:, 0]
        fits = (seq & (capacity - 1)) == np.arange(capacity)
        fits &= (raw[:, 6] >= 0) & (raw[:, 6] < len(STATES))
        fits &= (seq > max(0, head - capacity + 1)) & (seq <= head)
        whole: NDArray[np.int64] = raw[fits]
        return whole[np.argsort(whole[:, 0])]

    def _waits(
        self,
        at: int,
        words: NDArray[np.int64],
        comm: int,
        place: str,
        records: NDArray[np.int64],
    ) -> list[LaneWait]:
        """Return what the rank waits for, where that is said of its last call."""
        if not len(records) or records[-1, 6] == 1:
            return []
        for _ in range(8):
            before = int(self._words(at, RING_WORDS)[RingWord.WAITS])
            if not before:
                return []
            try:
                said = self._text(at + int(words[RingWord.WAITS_AT]), WAITS_BYTES)
                found = read_list(LaneWait, said, place)
            except TraceError:
                continue
            if before == int(self._words(at, RING_WORDS)[RingWord.WAITS]):
                last = int(records[-1, 0])
                return [replace(w, comm=comm) for w in found if w.seq == last]
        return []


def calls_of_records(records: NDArray[np.int64], rank: int, comm: int) -> Table:
    """Return calls as a table; what their kinds say is not in it yet."""
    table = np.zeros(len(records), CALL)
    table["rank"], table["comm"] = rank, comm
    for word, column in enumerate(
        ("seq", "kind", "stream", "enqueue", "start", "end", "state")
    ):
        table[column] = records[:, word]
    return table
