"""What the compiled engine keeps in memory, in 64-bit words, and what goes on the wire.

A connection carries frames, one after the other:

    PUT     kind offset nbytes, then the bytes
    SIGNAL  kind offset value side word word word

Words are as the processor has them: hosts of another byte order do not shake hands.
An offset from `hop.FIELDS` on means a field, see `stretto.fabric.hop.fields`.

A lane that may go by several rails is such a stream of bytes, carried by connections
that take turns (paths.py). Each begins with

    RUN     kind position

and then has the stream from that position on. What was sent is kept until it has
arrived. So that whoever waits for that hears of it, large data are answered by

    HAD     kind
"""

from __future__ import annotations

import enum

from stretto.fabric.jit.words import Words

PUT, SIGNAL = 0x5075740000000001, 0x5369670000000002
RUN, HAD = 0x52756E0000000003, 0x4861640000000004
PUT_WORDS, SIGNAL_WORDS, RUN_WORDS = 3, 7, 2
SMALL = 1 << 13
"""Bytes up to which data are copied beside their frame, and sent with what follows."""
BUFFER = 1 << 16
"""Bytes of a connection's buffers, for frames and small data: one out, one in."""
AFTER_LARGE = 1 << 12
"""Bytes that are received into the buffer after large data: more is likely to come,
and goes straight into place."""
ENTRIES = 256
"""Pieces of memory that wait to be sent on one connection."""
MOST_PIECES = 16
"""Pieces of a field that are received into at once."""


class Context(Words):
    """Words of a rank's context."""

    WINDOW = 0
    """Words of the window: see `Inside`."""
    LANES = 5
    LINKS = 6
    """Address of the connections' words, one block after the other."""
    NUM_LINKS = 7
    WAYS = 8
    """Address of a table: by peer and lane the address of its connection, or 0."""
    POLLED = 9
    """Address of what `poll` looks at: one word a connection, and one for WAKE."""
    TIME = 10
    """Two words: how long to sleep, in seconds and nanoseconds."""
    FIELDS = 12
    """Address of the table of fields, or 0."""
    NUM_FIELDS = 13
    WAKE = 14
    """A descriptor that ends a sleep, too, or -1."""
    SCRATCH = 15
    """Address of a buffer for what has come before, or 0: lanes have one connection."""
    TURN = 16
    """How often it was looked for what can be sent and received."""
    END = 17


class RailWord(Words):
    """Words of one of a lane's connections, where it may have several."""

    SOCKET = 0
    """Its number in this process; -1: there is none."""
    NUMBER = 1
    """Which of the lane's connections it is: a lane goes on to larger ones only."""
    ENDED = 2
    """Whether nothing can be sent by it (1), or received (2)."""
    ERROR = 3
    GOT = 4
    """Bytes of the words that it begins with that have come."""
    HEAD = 5
    END = HEAD + RUN_WORDS


class Link(Words):
    """Words of a connection."""

    SOCKET = 0
    ENDED = 1
    """An `End`."""
    ERROR = 2
    """The system's number of what went wrong."""
    PIECES = 3
    """Address of (address, bytes) of what is to be sent."""
    FIRST = 4
    LAST = 5
    OUT = 6
    """Address of the buffer for frames and small data."""
    OUT_USED = 7
    JOINS = 8
    """Whether the last piece lies at the end of that buffer, so that it can grow."""
    MESSAGE = 9
    """Seven words that `sendmsg` and `recvmsg` read."""
    IN = 16
    """Address of the buffer of what has come."""
    IN_FROM = 17
    IN_TO = 18
    TARGET = 19
    """Where the rest of a put's data goes; in a field, how far into it."""
    LEFT = 20
    """Bytes of it."""
    PEER = 21
    SENT = 22
    RECEIVED = 23
    FIELD = 24
    """Address of the field that the rest goes to, or 0."""
    GENERATION = 25
    """Which use of that field is meant."""
    ROOM = 26
    """Bytes of the buffer that are received into next."""
    ASKED = 27
    """Bytes that were asked of the system last."""
    IN_SOCKET = 28
    """What is received from; it differs from SOCKET while a lane changes rails."""
    PATHS = 29
    """Address of the lane's connections; 0: it has one, and no words below count."""
    SLOTS = 30
    """How many there is room for; one has the place that its number leaves by this."""
    NUMBER = 31
    """Of the connection that is sent by; -1: of none yet."""
    IN_NUMBER = 32
    LEAVE = 33
    """The least number that may be sent by from now on."""
    BASE = 34
    """The position in the stream of the first piece. What is before has arrived."""
    POSITION = 35
    """The position in the stream up to which it was sent."""
    DONE = 36
    """Bytes of piece FIRST that were sent."""
    TOTAL = 37
    """The position in the stream up to which there is something to send."""
    LARGE = 38
    """The position behind the last data that are sent from where their owner has them:
    they may have to be sent again."""
    HEAD_LEFT = 39
    """Bytes of the words that a connection begins with that are to be sent."""
    HEAD = 40
    TAKEN = HEAD + RUN_WORDS
    """The position in the stream up to which it was received."""
    SKIP = TAKEN + 1
    """Bytes to come that were received before, by another connection."""
    OWES = SKIP + 1
    """Whether large data have come that are not answered yet."""
    FURTHEST = OWES + 1
    """The position in the stream up to which it was sent by any connection."""
    QUEUED = FURTHEST + 1
    """What the system says of bytes that have not arrived."""
    STIRS = QUEUED + 1
    """The descriptor that turns readable when any of the lane's connections stirs."""
    ROOM_OF = STIRS + 1
    """Which of them also stirs when there is room to send; -1: none."""
    EVENT = ROOM_OF + 1
    """Two words that say so to the system."""
    VECTOR = EVENT + 2
    """Pieces to receive into, two words each."""
    END = VECTOR + 2 * (MOST_PIECES + 1)


class End(enum.IntEnum):
    """How a connection has ended."""

    OPEN = 0
    CLOSED = 1
    """The peer, or this end, ended it."""
    FAILED = 2
    NONSENSE = 3
    """What came is no frame, or reaches outside of the window."""
