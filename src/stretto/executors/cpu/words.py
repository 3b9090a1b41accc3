"""The tables that the interpreters walk, in 64-bit words.

A call's table is its header, scratch for operands, the lanes, and their instructions:

    MOVE    next kernel past nbytes num_dsts num_srcs step handed  (base value peer)...
    SIGNAL  next flag n peer
    WAIT    next flag n peer step far
    PUT     next peer lane - - - base value offset nbytes step
    RAISE   next peer lane offset - side - - - n step
    CROSS   next line word offset base value nbytes step peer - kernel gives
    END

CROSS has the kernel copy from a peer, or to it where it `gives`; the peer's line says
where its memory lies, and why it cannot be reached is left. PUT and RAISE go to a rank
on another host. Words marked - are filled in for each tile: with what precedes them
they are the arguments of the hop's `put` and `signal`.

An operand's address is `value` plus what its base says in this tile: staging and
packets add their parity's distance, input and output where the caller's memory and the
tile begin. `peer` is who writes a packet, or who owns the memory. `past` is a kernel
that writes past the caches, or 0; where something is `handed` to another core, the one
that has been quicker is taken.
"""

from __future__ import annotations

import enum

from stretto.compiler.plan import FLAG_BITS
from stretto.fabric.jit.words import Words

__all__ = [
    "BETWEEN_BYTES",
    "FLAG",
    "PRIVATE",
    "RING_ABI",
    "Base",
    "Code",
    "Common",
    "Header",
    "Line",
    "Status",
]

RING_ABI = 1
"""The meaning of a ring's words that the interpreter was compiled for."""
BETWEEN_BYTES = 1 << 16
FLAG = FLAG_BITS
"""A flag is (epoch << FLAG) + n."""
PRIVATE = -1
"""The offset of a buffer that no peer touches, or that a rank does not have."""


class Status(enum.IntEnum):
    """How a run of the interpreter ended."""

    DONE = 0
    WAITING = 1
    """Nothing moved for a while: look around, then resume."""
    MISMATCH = 2
    """A peer's fingerprint is not ours."""
    UNREGISTERED = 3
    """Peers would touch memory that they cannot reach; nothing was done."""
    BUSY = 4
    """Another thread is in a call of this session; nothing was done."""
    UNREACHED = 5
    """The kernel does not copy from a peer's memory."""


class Code(enum.IntEnum):
    """Instructions."""

    MOVE = 0
    SIGNAL = 1
    WAIT = 2
    END = 3
    PUT = 4
    RAISE = 5
    CROSS = 6


HANDED, COPIES = 1, 2
"""Bits of how a MOVE is: what it writes another core reads next; and it is one plain
copy, of which nothing is left where both places are one."""


class Base(enum.IntEnum):
    """What to add to an operand's value."""

    STAGE = 0
    INPUT = 1
    OUTPUT = 2
    PACKET = 3


class Header(Words):
    """Words at the start of a call's table."""

    SESSION = 0
    """Address of the session's words."""
    FINGERPRINT = 1
    TILES = 2
    TILE_BYTES = 3
    NUM_LANES = 4
    LANES = 5
    """Address of the lanes: for each its first instruction, and its next."""
    SCRATCH = 6
    HAS_INPUT = 7
    HAS_OUTPUT = 8
    SHARES_INPUT = 9
    """Whether peers touch the input: then it must lie at one offset everywhere."""
    SHARES_OUTPUT = 10
    TILE = 11
    INPUT = 12
    OUTPUT = 13
    INPUT_OFFSET = 14
    OUTPUT_OFFSET = 15
    KIND = 16
    """What a recording calls this kind of call: a number."""
    SHORT = 17
    """Whether it is over at once, when its peers are there."""
    END = 18


class Common(Words):
    """Words that all calls of a session share."""

    EPOCH = 0
    """The next one; the first is 1."""
    CALL = 1
    """Address of the line where peers read which call this rank is in."""
    HEAP = 2
    """Address of this rank's registered memory."""
    HEAP_BYTES = 3
    SPINS = 4
    YIELDS = 5
    SLEEPS = 6
    SLEEP_US = 7
    LONG_SPINS = 8
    """What SPINS is while the peers seem to run on other cores, and where they do not.
    """
    BRIEF_SPINS = 9
    AWAY_NS = 10
    """How long the last yield took; 0 when the last pause was none."""
    CLOCK = 11
    """Two words for the system's clock."""
    MOST_YIELDS = 13
    """What YIELDS is while no stranger takes the core; below 0 it counts up to that."""
    INSIDE = 14
    """The thread that is in a call of this session, or 0."""
    HOP = 15
    """The context of the way to other hosts, or 0; the addresses of its calls follow.
    """
    HOP_PUT = 16
    HOP_SIGNAL = 17
    HOP_PROGRESS = 18
    HOP_WAIT = 19
    HOP_BUSY = 20
    RING = 21
    """Where calls are recorded (`stretto.trace`), or 0: nowhere."""
    ASLEEP = 22
    """Address of the word in which this rank says that it sleeps."""
    WAKE = 23
    """The descriptor on which peers of this host wake it."""
    WAKERS = 24
    """Address of a table, by rank: the word in which it says that it sleeps, and the
    descriptor that wakes it, or 0 and 0. No table: nobody here can be woken."""
    HANDED = 25
    """How often something was handed over; what is tried depends on it."""
    PAST = 26
    """Whether to write past the caches what is handed over."""
    TOOK = 27
    """What handing over took by late, in ns for 4 KB: through the caches, and past."""
    BETWEEN = 29
    """Memory of two pages and `BETWEEN_BYTES`, through which a copy goes that would not
    lie in its page as its source does."""
    END = 30


class Line(Words):
    """Words of the line that says which call a rank is in, and of a flag's line.

    Of a call's line: EPOCH is 0 while the rest changes. Of a flag's line: the words
    after the flag are there twice, by parity, since a peer may be one epoch ahead.
    """

    EPOCH = 0
    FINGERPRINT = 1
    INPUT_OFFSET = 2
    OUTPUT_OFFSET = 3
    INPUT = 4
    """Of a call's line: where its arrays lie in its own process, and which that is."""
    OUTPUT = 5
    PID = 6
    """0: it has left its call, and nobody may write in its arrays."""
    GIVES = 7
    """One more than the rank in whose arrays this one has the kernel write, or 0."""
