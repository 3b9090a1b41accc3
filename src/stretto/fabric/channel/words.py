"""The memory of a channel: what each end consumes, and what it produces.

An end has an *in* half, which it consumes, and an *out* half, which is its peer's in
half: the very same memory on one host, a mirror of it where a hop lies between. Words
that only grow say how far each side has come; each has a cache line of its own. Behind
them lie records, and behind these the caller's own bytes.

A record is 64 bytes: eight words, of which the first says what it is.
"""

from __future__ import annotations

import enum

from stretto.fabric.jit.words import Words

__all__ = [
    "RECORD",
    "RECORD_WORDS",
    "RING",
    "SLOTS",
    "Attention",
    "ChannelWord",
    "Word",
    "halves",
]

RECORD = 64
RECORD_WORDS = 8
SLOTS = 1024
RING = 4096
"""Where a half's records begin."""


class Word(enum.IntEnum):
    """Byte offsets of a half's words."""

    TAIL = 0
    """Records that the producer has written."""
    HEAD = 64
    """Records that the consumer has taken."""
    STAGED = 128
    """Bytes of the caller's part that the consumer has given back."""
    ASLEEP = 192
    """Whether the consumer wants to be woken."""
    SIDE = 256
    """Three words that a hop's signal stores, and nobody reads."""
    LEFT = 320
    """Whether the producer has left: on one host it writes to nothing any more."""


class ChannelWord(Words):
    """Words by which the compiled functions know a channel; its owner's follow."""

    IN = 0
    OUT = 1
    """Addresses of the halves."""
    CONTEXT = 2
    """The hop's, or 0: then memory is shared."""
    PUT = 3
    SIGNAL = 4
    PROGRESS = 5
    WAIT = 6
    BUSY = 7
    """Addresses of the hop's calls, as `hop.Calls` has them."""
    POST_LOCK = 8
    TAKE_LOCK = 9
    """Taken by the one thread that posts, or takes."""
    TOLD = 10
    """What the peer behind a hop was last told of HEAD."""
    HALF_BYTES = 11
    ARGUMENTS = 12
    """Those of the call that is made now: eight words."""
    PEER = 20
    """The hop's number of the peer."""
    HOP_LOCK = 21
    """Taken by the one thread that uses the hop."""
    LANES = 22
    SEEN_HEAD = 23
    """What was last seen of the peer's HEAD: looking again takes a cache miss."""
    END = 24


class Attention(Words):
    """Words of a loop, which say whether others look for it."""

    IS_HOT = 0
    """Whether peers wake nobody, and the loop's thread leaves sockets alone."""
    LOOKS = 1
    """How often somebody has looked."""
    SPIN_NS = 2
    """How long who waits looks in vain before it sleeps."""
    ALONE_NS = 3
    """How long it looks in vain before another process may have the core."""
    RESTING = 4
    """Taken by the one thread that looks until something comes, and sleeps if it must.
    """
    TAKEN = 5
    """Another number whenever the interpreter has taken records, or ended something:
    who looks for what may be among it has to see for himself."""
    FAR_SPIN_NS = 6
    """How long sockets are looked at in vain before one sleeps."""
    WAITS = 7
    """How often somebody began to wait for what comes by a socket."""
    SOON = 8
    """How often in a row what was slept for came soon; less than 0 after it did not."""
    END = 9


def halves(nbytes: int) -> tuple[int, int]:
    """Return the size of a half with so many bytes of the caller's, and of both."""
    half = RING + SLOTS * RECORD + nbytes
    return half, 2 * half
