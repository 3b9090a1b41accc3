"""The memory of a link: what each end consumes, and what it produces.

An end has an *in* half, which it consumes, and an *out* half, which is its peer's in
half: the very same memory on one host, a mirror of it where a hop lies between. Words
that only grow say how far each side has come; each has a cache line of its own.

A record is 64 bytes: its kind, a number, and six more words.
"""

from __future__ import annotations

import enum

__all__ = [
    "BY_FIELD",
    "BY_KEPT",
    "BY_WORK",
    "HALF_BYTES",
    "MARKS",
    "MOST_FIELDS",
    "MOST_KEPT",
    "MOST_SENDS",
    "NUM_MARKS",
    "RECORD",
    "RING",
    "SLOTS",
    "STAGE",
    "STAGE_BYTES",
    "TAG_BYTES",
    "Ask",
    "Attention",
    "Block",
    "Kept",
    "Kind",
    "Look",
    "Nap",
    "Said",
    "Send",
    "Word",
]  # fmt: skip

RECORD = 64
RECORD_WORDS = 8
SLOTS = 1024


class Word(enum.IntEnum):
    """Byte offsets of a half's words."""

    TAIL = 0
    """Records that the producer has written."""
    HEAD = 64
    """Records that the consumer has taken."""
    STAGED = 128
    """Bytes of the stage that the consumer has given back."""
    ASLEEP = 192
    """Whether the consumer wants to be woken."""
    SIDE = 256
    """Three words that a hop's signal stores, and nobody reads."""
    LEFT = 320
    """Whether the producer has left: on one host it writes to nothing any more."""


MARKS, NUM_MARKS = 1024, 256
"""Where the producer says to which epochs of the consumer's memory it writes now."""
BY_WORK, BY_FIELD, BY_KEPT = 0, 1, 2
"""Which marks our own process uses where it stores what a peer sends."""
RING = 4096
STAGE = RING + SLOTS * RECORD
STAGE_BYTES = 4 << 20
HALF_BYTES = STAGE + STAGE_BYTES
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


class Block(enum.IntEnum):
    """Words by which the compiled functions know a link."""

    IN = 0
    OUT = 1
    """Addresses of the halves."""
    CONTEXT = 2
    """The hop's, or 0: then memory is shared."""
    PUT = 3
    SIGNAL = 4
    PROGRESS = 5
    """Addresses of the hop's calls."""
    PEER = 6
    """The hop's number of the peer."""
    HOP_LOCK = 7
    POST_LOCK = 8
    TAKE_LOCK = 9
    """Taken by the one thread that uses the hop, posts, or takes."""
    TOLD = 10
    """What the peer behind a hop was last told of HEAD."""
    PLACED = 11
    """Bytes of the stage that this end has used, from its first on."""
    ARGUMENTS = 12
    STAGE_LOCK = 20
    """Taken by the one thread that places bytes in the stage."""
    KEPT = 21
    """Address of the words of what is kept."""
    BUSY = 22
    """Another of the hop's calls, as is the next."""
    WAIT = 23
    SCRATCH = 24
    """A record that is being dealt with, and one that answers."""
    LANES = 56
    FIELDS = 57
    """Address of our fields, or 0."""
    SENDS = 58
    """Address of what waits to be sent."""
    FIRST_SEND = 59
    LAST_SEND = 60
    PUSH_LOCK = 61
    """Taken by who goes on with that."""
    SENDING_LOCK = 62
    SENDING = 63
    """Words of a send that is being made, by who has that lock."""
    NUM_KEPT = 80
    SEEN_HEAD = 81
    """What was last seen of the peer's HEAD: looking again takes a cache miss."""
    END = 82


class Kept(enum.IntEnum):
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


class Send(enum.IntEnum):
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


class Ask(enum.IntEnum):
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


class Attention(enum.IntEnum):
    """Words of a loop, which say whether others look for it."""

    IS_HOT = 0
    """Whether peers wake nobody, and the loop's thread leaves sockets alone."""
    LOOKS = 1
    """How often somebody has looked."""
    SPIN_NS = 2
    """How long who waits looks in vain before it sleeps."""
    ALONE_NS = 3
    """How long it looks in vain before another process may have the core."""
    END = 4


class Nap(enum.IntEnum):
    """Words of a sleep of an engine's thread."""

    ATTENTION = 0
    """Address of the loop's words."""
    TIME = 1
    """Two words for the time."""
    COUNT = 3
    OWNERS = 4
    """Address of the links whose sockets are polled; the first is none's."""
    POLLED = 5
    """Address of what is polled: the interpreter's selector, then the sockets."""
    END = 6


class Look(enum.IntEnum):
    """Words of a look at all links."""

    SPIN_NS = 0
    CLOCK = 1
    """Two words for the time."""
    COUNT = 3
    ATTENTION = 4
    """Address of the loop's words."""
    LINKS = 5
    """The addresses of so many links."""
