"""Serve the requests of kernels, compiled to run without the interpreter's lock.

One thread of a rank takes requests from the rings of all its sets, in order, hands them
to the carrier, and moves what comes from other hosts into place. It spins for a while
after the last of these, and then sleeps, ever longer, until something comes.
"""

from __future__ import annotations

import enum

from stretto.executors.cuda.words import HOST_REQUEST, HOST_RING_BEGIN, HOST_SLOTS
from stretto.fabric.hop import MORE, PutCall, SignalCall
from stretto.fabric.jit.atomics import call as jump
from stretto.fabric.jit.atomics import (
    compiled,
    load,
    load_acquire,
    pause,
    store,
    store_release,
)
from stretto.fabric.jit.libc import now_ns
from stretto.fabric.jit.words import Words

KEPT = 256
"""Requests whose times are kept."""


class ServingWord(Words):
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


class HostRingWord(Words):
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


class ServingEnd(enum.IntEnum):
    """Why the loop returns."""

    LOOK = 0
    """Some time has passed: somebody should look whether all is well."""
    STOPPED = 1
    NONSENSE = 2
    """A request that no kernel of ours makes."""


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
_HEAD, _SIZE = HOST_RING_BEGIN, int(HOST_REQUEST.itemsize)
_DONE, _LATER = 0, 1
_TOGETHER = 1 << 16
"""Bytes up to which a put waits for its signal: one call of the system for both."""


@compiled("int64(int64,int64,int64)")
def _is_sound(words: int, ring: int, slot: int) -> int:
    """Return whether a request stays inside of what it may touch."""
    peer, at, nbytes = load(slot + 8), load(slot + 16), load(slot + 24)
    if peer < 0 or peer >= load(words + ServingWord.NUM_RANKS.at):
        return 0
    # A rank of this host has no mirror: no kernel of ours asks to send to it.
    if load(load(ring + HostRingWord.MIRRORS.at) + 8 * peer) == 0:
        return 0
    if at < 0 or nbytes < 0 or at + nbytes > load(words + ServingWord.STAGE_BYTES.at):
        return 0
    word = load(slot + 32)
    return (
        1 if 0 <= word < load(words + ServingWord.FAR_BYTES.at) and word % 8 == 0 else 0
    )


@compiled("int64(int64,int64,int64)")
def _send(words: int, ring: int, slot: int) -> int:
    """Hand one request to the carrier; return whether it is done.

    When the next one is there, and is to the same rank, both go at once.
    """
    arguments, peer = words + ServingWord.ARGUMENTS.at, load(slot + 8)
    hop = load(words + ServingWord.HOP.at)
    store(arguments + PutCall.PEER.at, peer)
    taken = load(ring + HostRingWord.TAKEN.at)
    follows = (
        load(ring + HostRingWord.RING.at) + _HEAD + (taken + 1) % HOST_SLOTS * _SIZE
    )
    # Look one ahead: two requests to one rank are one call of the system.
    more = load_acquire(follows) == taken + 2 and load(follows + 8) == peer
    nbytes, value = load(slot + 24), load(slot + 40)
    signal_lane = MORE if more else 0
    # A large put is not held back: it is under way while its signal is prepared.
    together = value != 0 and nbytes <= _TOGETHER
    store(arguments + PutCall.LANE.at, MORE if together else signal_lane)
    # Not again when only the signal had no room: the bytes are under way.
    if nbytes > 0 and load(ring + HostRingWord.HALF_DONE.at) == 0:
        at = load(slot + 16)
        mirror = load(load(ring + HostRingWord.MIRRORS.at) + 8 * peer)
        store(arguments + PutCall.SOURCE.at, mirror + at)
        store(arguments + PutCall.OFFSET.at, load(ring + HostRingWord.INBOX.at) + at)
        store(arguments + PutCall.NBYTES.at, nbytes)
        if not jump(load(words + ServingWord.HOP_PUT.at), hop, arguments):
            return _LATER
        store(ring + HostRingWord.HALF_DONE.at, 1)
    if value != 0:
        word = load(ring + HostRingWord.FAR.at) + load(slot + 32)
        store(arguments + SignalCall.LANE.at, signal_lane)
        store(arguments + SignalCall.OFFSET.at, word)
        store(arguments + SignalCall.VALUE.at, value)
        store(arguments + SignalCall.SIDE.at, load(words + ServingWord.SIDE.at))
        if not jump(load(words + ServingWord.HOP_SIGNAL.at), hop, arguments):
            return _LATER
    store(ring + HostRingWord.HALF_DONE.at, 0)
    return _DONE


@compiled("int64(int64,int64)")
def _take(words: int, ring: int) -> int:
    """Do what is asked for in a ring; return how much, or less than 0: nonsense."""
    done, base = 0, load(ring + HostRingWord.RING.at)
    while done < HOST_SLOTS:
        taken = load(ring + HostRingWord.TAKEN.at)
        slot = base + _HEAD + taken % HOST_SLOTS * _SIZE
        # The number is written last: who sees it sees the whole request.
        if load_acquire(slot) != taken + 1:
            break
        begun = now_ns(words + ServingWord.CLOCK.at)
        # Pinned memory may be written over by a kernel gone wrong; no peer shall pay
        # for it.
        if not _is_sound(words, ring, slot):
            return -1
        if _send(words, ring, slot) == _LATER:
            store(words + ServingWord.TOLD.at, load(slot + 8) + 1)
            break
        store(words + ServingWord.TOLD.at, 0)
        store(ring + HostRingWord.TAKEN.at, taken + 1)
        # Only now may the kernel write the slot again.
        store_release(base, taken + 1)
        served = load(words + ServingWord.SERVED.at)
        took = now_ns(words + ServingWord.CLOCK.at) - begun
        store(words + ServingWord.TIMES.at + 8 * (served % KEPT), took)
        store(words + ServingWord.SERVED.at, served + 1)
        done += 1
    return done


@compiled("int64(int64)")
def _turn(words: int) -> int:
    """Serve all rings once and the carrier; return what moved, or less than 0."""
    moved, ring = 0, load(words + ServingWord.RINGS.at)
    for _ in range(load(words + ServingWord.NUM_RINGS.at)):
        done = _take(words, ring)
        if done < 0:
            return -1
        moved += done
        ring += HostRingWord.END.at
    hop = load(words + ServingWord.HOP.at)
    return moved + jump(load(words + ServingWord.HOP_PROGRESS.at), hop, 0)


@compiled("int64(int64)")
def serve(words: int) -> int:
    """Serve for a while; return why no longer."""
    hop = load(words + ServingWord.HOP.at)
    begun = now_ns(words + ServingWord.CLOCK.at)
    while True:
        moved = _turn(words)
        if moved < 0:
            return ServingEnd.NONSENSE
        now = now_ns(words + ServingWord.CLOCK.at)
        if moved > 0:
            store(words + ServingWord.MOVED_NS.at, now)
        idle = now - load(words + ServingWord.MOVED_NS.at)
        ends = load_acquire(words + ServingWord.STOP.at) != 0 and moved == 0
        if ends and not jump(load(words + ServingWord.HOP_BUSY.at), hop, 0):
            return ServingEnd.STOPPED
        # Come back to Python now and then: it alone hears that a peer is lost.
        if idle > _LOOK_NS and now - begun > _LOOK_NS:
            return ServingEnd.LOOK
        if idle < _SPIN_NS:
            pause()
            continue
        nap = _LONGEST_US
        if idle < _SHORT_NS:
            nap = _SHORT_US
        elif idle < _LONG_NS:
            nap = _LONG_US
        jump(load(words + ServingWord.HOP_WAIT.at), hop, nap)
