"""Serve the requests of kernels, compiled to run without the interpreter's lock.

One thread of a rank takes requests from the rings of all its sets, in order, hands them
to the carrier, and moves what comes from other hosts into place. It spins for a while
after the last of these, and then sleeps, ever longer, until something comes.
"""

from __future__ import annotations

import enum

from stretto.executors.cuda.hosts.layout import REQUEST, SLOTS
from stretto.hop import MORE
from stretto.jit.atomics import call as jump
from stretto.jit.atomics import (
    clock_gettime,
    compiled,
    load,
    load_acquire,
    pause,
    store,
    store_release,
)

__all__ = ["KEPT", "RingWord", "Said", "Word", "serve"]

KEPT = 256
"""Requests whose times are kept."""


class Word(enum.IntEnum):
    """Words of the loop."""

    STOP = 0
    """Not 0: return when all requests have been sent."""
    HOP = 1
    """The carrier's context; then addresses of its calls."""
    HOP_PUT = 2
    HOP_SIGNAL = 3
    HOP_PROGRESS = 4
    HOP_WAIT = 5
    HOP_BUSY = 6
    RINGS = 7
    """Address of the rings' words, one block after the other."""
    NUM_RINGS = 8
    SIDE = 9
    """Offset in a window of what signals write beside."""
    FAR_BYTES = 10
    STAGE_BYTES = 11
    """Of a set: what a request's word, and its range, must lie in."""
    CLOCK = 12
    """Two words: seconds and nanoseconds."""
    ARGUMENTS = 14
    """Eight words, of the carrier's calls."""
    MOVED_NS = 22
    """When something was last moved."""
    SERVED = 23
    """Requests served so far."""
    TOLD = 24
    """The peer of a request that cannot be sent, and one more; 0: there is none."""
    NUM_RANKS = 25
    TIMES = 26
    """How long the last requests took, in nanoseconds."""
    END = 26 + KEPT


class RingWord(enum.IntEnum):
    """Words of one ring."""

    RING = 0
    """Its address."""
    TAKEN = 1
    HALF_DONE = 2
    """1: the range of the next request has been put, and its word not yet raised."""
    FAR = 3
    """Offset in a window of the set's flags."""
    INBOX = 4
    """Offset in a window of the set's staging."""
    MIRRORS = 5
    """Address of words: by rank that of its mirror, 0 where it is on this host."""
    END = 6


class Said(enum.IntEnum):
    """Why the loop returns."""

    LOOK = 0
    """Some time has passed: somebody should look whether all is well."""
    STOPPED = 1
    NONSENSE = 2
    """A request that no kernel of ours makes."""


_CLOCK_MONOTONIC = 1
_SPIN_NS = 2_000_000
"""How long it spins after something has moved."""
_NAPS = (
    (100_000_000, 50),  # idle for so many nanoseconds: naps of so many microseconds
    (1_000_000_000, 1000),
    (1 << 62, 5000),
)
_SHORT_NS, _SHORT_US = _NAPS[0]
_LONG_NS, _LONG_US = _NAPS[1]
_LONGEST_US = _NAPS[2][1]
_LOOK_NS = 100_000_000
"""How long nothing must have moved before it returns, which takes the lock."""
_HEAD, _SIZE = 64, int(REQUEST.itemsize)
_SLOTS, _NUM_RANKS = SLOTS, 8 * Word.NUM_RANKS
_HOP, _PUT, _SIGNAL = 8 * Word.HOP, 8 * Word.HOP_PUT, 8 * Word.HOP_SIGNAL
_PROGRESS, _WAIT = 8 * Word.HOP_PROGRESS, 8 * Word.HOP_WAIT
_BUSY, _STOP, _RINGS = 8 * Word.HOP_BUSY, 8 * Word.STOP, 8 * Word.RINGS
_NUM_RINGS, _SIDE, _CLOCK = 8 * Word.NUM_RINGS, 8 * Word.SIDE, 8 * Word.CLOCK
_FAR_BYTES, _STAGE_BYTES = 8 * Word.FAR_BYTES, 8 * Word.STAGE_BYTES
_ARGUMENTS, _MOVED, _SERVED = 8 * Word.ARGUMENTS, 8 * Word.MOVED_NS, 8 * Word.SERVED
_TOLD, _TIMES, _KEPT = 8 * Word.TOLD, 8 * Word.TIMES, KEPT
_RING, _TAKEN, _HALF_DONE = (
    8 * RingWord.RING,
    8 * RingWord.TAKEN,
    8 * RingWord.HALF_DONE,
)
_FAR, _INBOX, _MIRRORS = 8 * RingWord.FAR, 8 * RingWord.INBOX, 8 * RingWord.MIRRORS
_RING_WORDS = 8 * RingWord.END
_DONE, _LATER = 0, 1
_MORE = MORE
_TOGETHER = 1 << 16
"""Bytes up to which a put waits for its signal: one call of the system for both."""
_SAID_LOOK, _SAID_STOPPED = int(Said.LOOK), int(Said.STOPPED)
_SAID_NONSENSE = int(Said.NONSENSE)


@compiled("int64(int64)")
def _now(words: int) -> int:
    clock_gettime(_CLOCK_MONOTONIC, words + _CLOCK)
    return load(words + _CLOCK) * 1_000_000_000 + load(words + _CLOCK + 8)


@compiled("int64(int64,int64,int64)")
def _is_sound(words: int, ring: int, slot: int) -> int:
    """Return whether a request stays inside of what it may touch."""
    peer, at, nbytes = load(slot + 8), load(slot + 16), load(slot + 24)
    if peer < 0 or peer >= load(words + _NUM_RANKS):
        return 0
    if load(load(ring + _MIRRORS) + 8 * peer) == 0:
        return 0
    if at < 0 or nbytes < 0 or at + nbytes > load(words + _STAGE_BYTES):
        return 0
    word = load(slot + 32)
    return 1 if 0 <= word < load(words + _FAR_BYTES) and word % 8 == 0 else 0


@compiled("int64(int64,int64,int64)")
def _send(words: int, ring: int, slot: int) -> int:
    """Hand one request to the carrier; return whether it is done.

    When the next one is there, and is to the same rank, both go at once.
    """
    arguments, peer = words + _ARGUMENTS, load(slot + 8)
    store(arguments, peer)
    taken = load(ring + _TAKEN)
    follows = load(ring + _RING) + _HEAD + (taken + 1) % _SLOTS * _SIZE
    more = load_acquire(follows) == taken + 2 and load(follows + 8) == peer
    store(arguments + 8, _MORE if more else 0)
    nbytes, value = load(slot + 24), load(slot + 40)
    signal_lane = load(arguments + 8)
    if value != 0 and nbytes <= _TOGETHER:
        store(arguments + 8, _MORE)
    if nbytes > 0 and load(ring + _HALF_DONE) == 0:
        at = load(slot + 16)
        store(arguments + 16, load(load(ring + _MIRRORS) + 8 * peer) + at)
        store(arguments + 24, load(ring + _INBOX) + at)
        store(arguments + 32, nbytes)
        if not jump(load(words + _PUT), load(words + _HOP), arguments):
            return _LATER
        store(ring + _HALF_DONE, 1)
    if value != 0:
        store(arguments + 8, signal_lane)
        store(arguments + 16, load(ring + _FAR) + load(slot + 32))
        store(arguments + 24, value)
        store(arguments + 32, load(words + _SIDE))
        if not jump(load(words + _SIGNAL), load(words + _HOP), arguments):
            return _LATER
    store(ring + _HALF_DONE, 0)
    return _DONE


@compiled("int64(int64,int64)")
def _take(words: int, ring: int) -> int:
    """Do what is asked for in a ring; return how much, or less than 0: nonsense."""
    done, base = 0, load(ring + _RING)
    while done < _SLOTS:
        taken = load(ring + _TAKEN)
        slot = base + _HEAD + taken % _SLOTS * _SIZE
        if load_acquire(slot) != taken + 1:
            break
        begun = _now(words)
        if not _is_sound(words, ring, slot):
            return -1
        if _send(words, ring, slot) == _LATER:
            store(words + _TOLD, load(slot + 8) + 1)
            break
        store(words + _TOLD, 0)
        store(ring + _TAKEN, taken + 1)
        store_release(base, taken + 1)
        served = load(words + _SERVED)
        store(words + _TIMES + 8 * (served % _KEPT), _now(words) - begun)
        store(words + _SERVED, served + 1)
        done += 1
    return done


@compiled("int64(int64)")
def _turn(words: int) -> int:
    """Serve all rings once and the carrier; return what moved, or less than 0."""
    moved, ring = 0, load(words + _RINGS)
    for _ in range(load(words + _NUM_RINGS)):
        done = _take(words, ring)
        if done < 0:
            return -1
        moved += done
        ring += _RING_WORDS
    return moved + jump(load(words + _PROGRESS), load(words + _HOP), 0)


@compiled("int64(int64)")
def serve(words: int) -> int:
    """Serve for a while; return why no longer."""
    begun = _now(words)
    while True:
        moved = _turn(words)
        if moved < 0:
            return _SAID_NONSENSE
        now = _now(words)
        if moved > 0:
            store(words + _MOVED, now)
        idle = now - load(words + _MOVED)
        ends = load_acquire(words + _STOP) != 0 and moved == 0
        if ends and not jump(load(words + _BUSY), load(words + _HOP), 0):
            return _SAID_STOPPED
        if idle > _LOOK_NS and now - begun > _LOOK_NS:
            return _SAID_LOOK
        if idle < _SPIN_NS:
            pause()
            continue
        nap = _LONGEST_US
        if idle < _SHORT_NS:
            nap = _SHORT_US
        elif idle < _LONG_NS:
            nap = _LONG_US
        jump(load(words + _WAIT), load(words + _HOP), nap)
