"""The last calls of each communicator, in memory that outsiders can read.

A process has one file for all of its communicators, in memory and without a name (or
in a folder, when it is to outlive the process): whoever may look into the process finds
it among its open files. A call is a record of eight words, written by whoever makes
the call and by nobody else; so a writer takes no lock and waits for nobody. Readers
copy, and drop what was written over meanwhile: a record begins with its number.

    head       magic, who the process is, a directory of rings
    ring       words that change; then texts: the communicator, what it waits for now,
               the kinds of its calls; then the records of calls

Steps are in memory of the process alone: only it reads them (recording.py).
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from typing import Any

import numpy as np
from numpy.typing import NDArray

from stretto.fabric.jit.words import Words
from stretto.fabric.memory import PAGE
from stretto.trace.tables import CallKind, Comm

ABI = 1
"""Changes with the meaning of any word here; the CPU interpreter has it compiled in."""
MAGIC = b"stretto rings 1\n"
NAME = "stretto-rings"
RECORD_WORDS = 8
"""Words of the record of a call, and of a step: a line of the cache."""
MOST_RINGS = 1023
HEAD_BYTES = 4096
"""Of the file: magic, words, and a text about the process."""
ENTRY_WORDS = 4
DIRECTORY_BYTES = 8 * ENTRY_WORDS * (MOST_RINGS + 1)
TEXT_AT = 256
RING_WORDS = 64
MOST_LANES = 8
WAITS_BYTES = 8192
KINDS = 256
KIND_BYTES = 1024


class FileWord(Words):
    """Words of the file's head, after its magic."""

    PID = 2
    RINGS = 3
    """Entries of the directory that are in use: `offset, nbytes, state, number`."""


class RingWord(Words):
    """Words at the start of a ring."""

    HEAD = 0
    """How many calls have begun: the number of the last one."""
    MASK = 1
    """Records, less one: a power of two, less one."""
    RECORDS = 2
    """Where they begin, as an address in the process."""
    ENQUEUE = 3
    """When the next call was asked for, if not just now; taken by it."""
    STEPS = 4
    """1 while steps are recorded."""
    STEP_HEAD = 5
    STEP_MASK = 6
    CURRENT = 7
    """The address of the last call's record."""
    CALLS_AT = 8
    """Where things are, in bytes from the ring's start: records, and the texts."""
    COMM_AT = 9
    WAITS_AT = 10
    KINDS_AT = 11
    RANK = 12
    """This rank, of the world."""
    NUM_KINDS = 13
    WAITS = 14
    """Odd while the text about waits changes."""
    STEPS_AT = 15
    """Where records of steps begin, as an address; it stays when they end."""
    BEGAN = 16
    """`MOST_LANES` words: when each lane came to the step that it waits in."""
    CLOCK = 24
    """Two words for the system's clock."""


class CallWord(Words):
    """Words of a call's record."""

    SEQ = 0
    KIND = 1
    STREAM = 2
    ENQUEUE = 3
    START = 4
    END = 5
    STATE = 6


class StepWord(Words):
    """Words of a step's record: numbers that the kind of its call explains."""

    SEQ = 0
    KIND = 1
    AT = 2
    """Which instruction: a number that the executor gives steps."""
    TILE = 3
    BEGIN = 4
    WAIT = 5
    END = 6
    LANE = 7


class Ring:
    """The calls of one communicator. One thread at a time writes."""

    def __init__(
        self, memory: NDArray[np.uint8], comm: Comm, rank: int, capacity: int
    ) -> None:
        """Lay it out in memory of zeros; see `size_of`."""
        self.comm, self.rank = comm, rank
        self._memory = memory
        self.words: NDArray[np.int64] = memory[: 8 * RING_WORDS].view(np.int64)
        self._word = self.words.data.cast("B").cast("q")
        said = _comm_text(comm)
        comm_at = 8 * RING_WORDS
        waits_at = comm_at + 8 + -(-len(said) // 8) * 8
        kinds_at = waits_at + WAITS_BYTES
        calls_at = -(-(kinds_at + KINDS * KIND_BYTES) // PAGE) * PAGE
        self._texts = {"comm": comm_at, "waits": waits_at, "kinds": kinds_at}
        self._write(comm_at, said)
        self.capacity = capacity
        stop = calls_at + 8 * RECORD_WORDS * capacity
        self.calls: NDArray[np.int64] = (
            memory[calls_at:stop].view(np.int64).reshape(capacity, RECORD_WORDS)
        )
        self._records = self.calls.data.cast("B").cast("q")
        for word, value in (
            (RingWord.MASK, capacity - 1),
            (RingWord.RECORDS, self.calls.ctypes.data),
            (RingWord.CURRENT, self.calls.ctypes.data),
            (RingWord.CALLS_AT, calls_at),
            (RingWord.COMM_AT, comm_at),
            (RingWord.WAITS_AT, waits_at),
            (RingWord.KINDS_AT, kinds_at),
            (RingWord.RANK, rank),
        ):
            self.words[word] = value
        self.address = int(self.words.ctypes.data)
        """Where its words are: what compiled code is given."""
        self.kinds: list[CallKind] = []
        self.decoders: dict[int, Callable[[], Any]] = {}
        """By kind: what makes the table that explains its steps."""
        self._numbers: dict[CallKind, int] = {}
        self.steps: NDArray[np.int64] | None = None
        self.taken = self.steps_taken = 0
        """Records that were read, for whoever reads them all."""
        self.closed = False
        self.orphaned: Any = None
        """What closes it when its owner is forgotten."""

    def define(self, kind: CallKind, decoder: Callable[[], Any] | None = None) -> int:
        """Return the number of a kind of calls."""
        number = self._numbers.get(kind)
        if number is None:
            number = self._numbers[kind] = len(self.kinds)
            self.kinds.append(kind)
            at = self._texts["kinds"] + number % KINDS * KIND_BYTES
            text = json.dumps(asdict(kind), separators=(",", ":")).encode()
            if len(text) > KIND_BYTES - 16:
                short = asdict(kind) | {"text": ""}
                text = json.dumps(short, separators=(",", ":")).encode()
            self._write(at + 8, text[: KIND_BYTES - 16])
            self._memory[at : at + 8].view(np.int64)[0] = number + 1
            self.words[RingWord.NUM_KINDS] = len(self.kinds)
        if decoder is not None:
            self.decoders[number] = decoder
        return number

    def begin(self, kind: int, stream: int = 0, state: int = 0) -> int:
        """Write the start of a call; return the index of its first word."""
        word, now = self._word, time.monotonic_ns()
        number = word[0] + 1
        at = (number & word[1]) * RECORD_WORDS
        # The number is taken away first and written last: readers that copy meanwhile
        # see a record without one, or one that is not what they looked for.
        asked = word[3] or now
        self._records[at] = 0
        for value in (kind, stream, asked, 0 if state else now, 0, state):
            at += 1
            self._records[at] = value
        at -= 6
        word[3] = 0
        self._records[at] = number
        word[0] = number
        return at

    def end(self, at: int, state: int = 1) -> None:
        """Write the end of a call that `begin` has written."""
        self._records[at + 5] = time.monotonic_ns()
        self._records[at + 6] = state

    def fail(self) -> None:
        """Say of the last call that it has failed."""
        number = self._word[0]
        at = (number & self._word[1]) * RECORD_WORDS
        if number and not self._records[at + 6]:
            self.end(at, 2)

    def enqueued(self, ns: int) -> None:
        """Say when the next call was asked for."""
        self._word[3] = ns

    def record_steps(self, capacity: int) -> None:
        """Record steps from now on, or with 0 no more."""
        words = self.words
        words[RingWord.STEPS] = 0
        if not capacity:
            return
        if self.steps is None:  # once: a call may be writing
            self.steps = np.zeros((capacity, RECORD_WORDS), np.int64)
            words[RingWord.STEP_MASK] = capacity - 1
            words[RingWord.STEPS_AT] = self.steps.ctypes.data
        words[RingWord.STEPS] = 1

    def say_waits(self, document: Sequence[Mapping[str, Any]]) -> None:
        """Say what this rank waits for, now: see `Wait`."""
        text = json.dumps(document, separators=(",", ":")).encode()
        if len(text) > WAITS_BYTES - 8:
            text = json.dumps(document[:8], separators=(",", ":")).encode()
        if len(text) > WAITS_BYTES - 8:
            text = b"[]"
        self.words[RingWord.WAITS] += 1
        self._write(self._texts["waits"], text)
        self.words[RingWord.WAITS] += 1

    def _write(self, at: int, text: bytes) -> None:
        self._memory[at + 8 : at + 8 + len(text)] = np.frombuffer(text, np.uint8)
        self._memory[at : at + 8].view(np.int64)[0] = len(text)


def size_of(comm: Comm, capacity: int) -> int:
    """Return the bytes of a ring."""
    said = 8 + -(-len(_comm_text(comm)) // 8) * 8
    before = 8 * RING_WORDS + said + WAITS_BYTES + KINDS * KIND_BYTES
    whole = -(-before // PAGE) * PAGE + 8 * RECORD_WORDS * capacity
    return -(-whole // PAGE) * PAGE


def _comm_text(comm: Comm) -> bytes:
    return json.dumps(asdict(comm), separators=(",", ":")).encode()
