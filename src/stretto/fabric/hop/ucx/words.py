"""What the compiled engine keeps in memory, in 64-bit words."""

from __future__ import annotations

import enum

from stretto.fabric.jit.words import Words

MOST = 512
"""Requests that may be under way."""
SLOTS = 256
"""Signals whose words are being read."""
SLOT_WORDS = 16
"""Of a signal: see `Slot`."""


class MessageKind(enum.IntEnum):
    """Kinds of messages."""

    PUT = 0
    SIGNAL = 1


class MessageHeader(Words):
    """Words before a message's data."""

    RANK = 0
    """Who sends it."""
    NTH = 1
    """Which of its messages to this peer it is."""
    KIND = 2
    OFFSET = 3
    VALUE = 4
    """Of a signal, as what follows."""
    SIDE = 5
    WORDS = 6
    """Three words."""
    END = 9


class Context(Words):
    """Words of a rank's context."""

    WORKER = 0
    PUT = 1
    """Addresses of UCX's functions, from here on."""
    FLUSH = 2
    PROGRESS = 3
    CHECK = 4
    FREE = 5
    ARM = 6
    PARAMETERS = 7
    """Address of `RequestParams` that say nothing."""
    PEERS = 8
    """Address of the peers' words."""
    REQUESTS = 9
    """Address of (request, address of the signal's words or 0, address of the peer)."""
    UNDER_WAY = 10
    SLOTS = 11
    NEXT_SLOT = 12
    POLLED = 13
    """Two words that `poll` reads: the worker's descriptor, and what ends a sleep, too,
    or -1."""
    TIME = 15
    """Two words: how long to sleep."""
    FIRST_SLOT = 17
    """The oldest signal whose word has not been put."""
    LOCK = 18
    """Not 0 while a thread is in UCX, whose workers take one at a time."""
    MESSAGE = 19
    """Address of UCX's function."""
    MESSAGE_PARAMETERS = 20
    """Address of `RequestParams` of messages."""
    RANK = 21
    NUM_RANKS = 22
    WINDOW = 23
    """Words of the window: see `Inside`."""
    MAPPED = 28
    """Bytes from the window's address on that UCX knows."""
    MAPPED_PARAMETERS = 29
    """Address of `RequestParams` that name them: they are not registered again."""
    HEADER = 30
    """Of the message that is being sent: UCX copies it."""
    END = 30 + MessageHeader.END


class Slot(Words):
    """Words of a signal on its way."""

    READERS = 0
    """Requests that still read from here."""
    SIDE = 1
    """Three words."""
    VALUE = 4
    OFFSET = 5
    PEER = 6
    """Address of the peer's words."""
    FLUSH = 7
    """The request that ends when all that was put before has landed; 0: it has."""
    WAITS = 8


class PeerWord(Words):
    """Words of a peer."""

    END_POINT = 0
    KEY = 1
    """Of its memory."""
    BASE = 2
    """Where its window begins, in its process."""
    STATUS = 3
    """Not 0: the connection has ended so."""
    BY_MESSAGES = 4
    """Not 0: it is reached by TCP alone, see `messages`."""
    SENT = 5
    """Messages to it, and from it."""
    TAKEN = 6
    END = 7
