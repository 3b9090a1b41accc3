"""What a link adds to its channel: a stage, marks, kinds of records, and its words.

A record's words are its kind, a number, and six more. See `fabric.channel.words`.
"""

from __future__ import annotations

import enum

from stretto.fabric.channel.words import (
    RECORD,
    RECORD_WORDS,
    RING,
    SLOTS,
    ChannelWord,
    halves,
)
from stretto.fabric.jit.words import Words

__all__ = [
    "BOTH_BYTES",
    "BY_FIELD",
    "BY_KEPT",
    "BY_WORK",
    "HALF_BYTES",
    "MARKS",
    "MOST_FIELDS",
    "MOST_KEPT",
    "MOST_SENDS",
    "NUM_MARKS",
    "STAGE",
    "STAGE_BYTES",
    "TAG_BYTES",
    "Ask",
    "Block",
    "Kept",
    "Kind",
    "Look",
    "Nap",
    "Said",
    "Send",
]  # fmt: skip

MARKS, NUM_MARKS = 1024, 256
"""Where the producer says to which epochs of the consumer's memory it writes now."""
BY_WORK, BY_FIELD, BY_KEPT = 0, 1, 2
"""Which marks our own process uses where it stores what a peer sends."""
STAGE = RING + SLOTS * RECORD
STAGE_BYTES = 4 << 20
HALF_BYTES, BOTH_BYTES = halves(STAGE_BYTES)
MOST_KEPT = 1024
"""Prepared transfers of a peer that are kept ready."""
MOST_FIELDS = 2048
"""Fields that are open to a peer at once."""
MOST_SENDS = 64
"""What waits to be sent to a peer without the stage."""
TAG_BYTES = 32
"""Bytes of a notification's name: the last words of its record."""


class Kind(enum.IntEnum):
    """What a record says."""

    NOTIFY = 1
    """number: a hash of the tag; then how many, the tag's length, and its bytes."""
    OPEN = 2
    """number: a transfer's; then where its request lies in the stage, and its bytes."""
    DATA = 3
    """number: a transfer's; then part, first run, last, place in the stage, bytes."""
    END = 4
    """number: a transfer's; then status, sum; nothing follows."""
    DROP = 5
    """number: a transfer's that is not wanted any more."""
    QUICK_PUT = 6
    """number: of a kept put; then a turn, its place, bytes, what is given back."""
    QUICK_GET = 7
    """number: of a kept get; then a turn, and, as the sixth word, the same."""
    DONE = 8
    """number: a turn; then status, place, bytes, and what is given back.

    The last two words of this, of a put and of an end: a field of the reader's, and
    how many bytes were put there. The place is -1 then.
    """
    GO = 9
    """number: of a put; then the field that its bytes go to, or 0: use the stage."""
    FORGET = 10
    """number: of a transfer that need not be kept any more."""


_FIRST = int(ChannelWord.END)


class Block(Words):
    """Words by which the compiled functions know a link, behind its channel's."""

    PLACED = _FIRST
    """Bytes of the stage that this end has used, from its first on."""
    STAGE_LOCK = _FIRST + 1
    """Taken by the one thread that places bytes in the stage."""
    KEPT = _FIRST + 2
    """Address of the words of what is kept."""
    NUM_KEPT = _FIRST + 3
    FIELDS = _FIRST + 4
    """Address of our fields, or 0."""
    SENDS = _FIRST + 5
    """Address of what waits to be sent."""
    FIRST_SEND = _FIRST + 6
    LAST_SEND = _FIRST + 7
    PUSH_LOCK = _FIRST + 8
    """Taken by who goes on with that."""
    SENDING_LOCK = _FIRST + 9
    SENDING = _FIRST + 10
    """Words of a send that is being made, by who has that lock."""
    SCRATCH = _FIRST + 32
    """A record that is being dealt with, and one that answers."""
    END = _FIRST + 64


class Kept(Words):
    """Words of a transfer that is kept ready for a peer."""

    JOB = 0
    ROWS = 1
    NBYTES = 2
    KIND = 3
    """1: a put, 2: a get, 0: forgotten."""
    FIELD = 4
    """The offset of the field, ours of a put, the peer's of a get; 0: the stage."""
    PIECES = 5
    COUNT = 6
    """What a get sends."""
    EPOCH = 7
    WANT = 8
    END = 9


class Send(Words):
    """Words of what waits to be sent to a peer's field."""

    PIECES = 0
    """Address of its pieces, as those of a field."""
    COUNT = 1
    NEXT = 2
    INTO = 3
    """The next piece, and how far it has been put."""
    TO = 4
    """The offset of the field."""
    CANCEL = 5
    """Address of a word: not 0 when the rest is not wanted; or 0."""
    EPOCH = 6
    """Address of the epoch of the memory that is read, or 0."""
    WANT = 7
    LANE = 8
    """The lane to try next."""
    RECORD = 9
    """The record that follows."""
    END = RECORD + RECORD_WORDS


class Ask(Words):
    """Words of a prepared transfer that a peer keeps ready, too."""

    LINK = 0
    JOB = 1
    ROWS = 2
    NBYTES = 3
    KEPT = 4
    """The peer's number of it."""
    IS_PUT = 5
    TURN = 6
    """Its number, shifted by 32, and how often it was done."""
    BUSY = 7
    """Taken by who does it now."""
    ATTENTION = 8
    """Address of the loop's words."""
    FIELD = 9
    """The offset of the field, the peer's of a put, ours of a get; 0: the stage."""
    CANCEL = 10
    """Address of a word: not 0 when the peer is gone."""
    CLOCK = 11
    """Two words for the time."""
    SEND = 13
    """What a put sends to a field: the words of a `Send`."""
    END = SEND + Send.END


class Said(enum.IntEnum):
    """What a quick transfer says where it has no status."""

    NOT_YET = -1
    OTHER = -2
    """Another record is first."""
    BUSY = -3
    """Another thread does it."""
    COLD = -4
    """The loop's thread has to be told that somebody looks."""
    NO_ROOM = -5
    LOST = -6
    """The peer is gone."""


class Nap(Words):
    """Words of a sleep: of an engine's thread, or of who waits in its place."""

    ATTENTION = 0
    """Address of the loop's words."""
    TIME = 1
    """Two words for the time."""
    COUNT = 3
    OWNERS = 4
    """Address of the links whose sockets are polled; the first is none's."""
    POLLED = 5
    """Address of what is polled: the interpreter's selector, then the sockets.

    In the loop's place it is the bell that peers of this host ring, then the sockets.
    """
    END = 6


class Look(Words):
    """Words of a look at all links."""

    SPIN_NS = 0
    CLOCK = 1
    """Two words for the time."""
    COUNT = 3
    ATTENTION = 4
    """Address of the loop's words."""
    FAR = 5
    """How many of them go by a hop: to look at one takes a call of the system."""
    REST = 6
    """Address of the words of a sleep in the loop's place (`Nap`), or 0: nobody may."""
    LINKS = 7
    """The addresses of so many links."""
