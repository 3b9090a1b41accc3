"""Records in and out, compiled: posted and taken by any thread, one at a time.

A link is the address of its `Block`. What a record announces was stored before it: the
word TAIL is stored last, and who sees it sees the rest.
"""

from __future__ import annotations

from collections.abc import Callable

from numba import types

from stretto.hop import MORE
from stretto.jit.atomics import (
    call,
    clock_gettime,
    compiled,
    fence,
    load,
    load_acquire,
    pause,
    sched_yield,
    store,
    store_release,
    take,
)
from stretto.jit.locks import enter
from stretto.transfer.links import words
from stretto.transfer.links.words import (
    HALF_BYTES,
    RECORD,
    RING,
    SLOTS,
    Attention,
    Block,
)

__all__ = [
    "far_put", "far_signal", "far_wait", "give_way", "post", "progress", "rest",
    "taken", "time_ns",
]  # fmt: skip

_memcpy: Callable[[int, int, int], int] = types.ExternalFunction(
    "memcpy", types.int64(types.int64, types.int64, types.int64)
)
_MONOTONIC = 1
_SOON_NS, _LATE_NS, _LONG_NS = 3_000, 25_000, 5_000
_ALONE_NS = 8 * Attention.ALONE_NS
_TAIL, _HEAD = int(words.Word.TAIL), int(words.Word.HEAD)
_ASLEEP, _SIDE = int(words.Word.ASLEEP), int(words.Word.SIDE)
_OUT, _CONTEXT = 8 * Block.OUT, 8 * Block.CONTEXT
_PUT, _SIGNAL, _PROGRESS = 8 * Block.PUT, 8 * Block.SIGNAL, 8 * Block.PROGRESS
_WAIT, _SEEN_HEAD = 8 * Block.WAIT, 8 * Block.SEEN_HEAD
_PEER, _HOP_LOCK = 8 * Block.PEER, 8 * Block.HOP_LOCK
_POST_LOCK = 8 * Block.POST_LOCK
_TOLD, _ARGUMENTS = 8 * Block.TOLD, 8 * Block.ARGUMENTS
_EVERY = SLOTS // 8
"""Records after which the consumer behind a hop says how far it is."""
_FULL, _POSTED, _WAKE = 0, 1, 3
_RESTS = 16


@compiled("int64(int64)")
def time_ns(clock: int) -> int:
    """Return the time; the two words at an address are used for it."""
    clock_gettime(_MONOTONIC, clock)
    return load(clock) * 1_000_000_000 + load(clock + 8)


@compiled("int64(int64,int64,int64,int64)")
def give_way(attention: int, clock: int, begun: int, now: int) -> int:
    """Let another process have the core, after a while; return the time.

    A yield that takes long has found somebody, perhaps the peer: then the next comes
    soon. Else it would only cost time.
    """
    if now - begun < load(attention + _ALONE_NS):
        return now
    sched_yield()
    after = time_ns(clock)
    store(attention + _ALONE_NS, _SOON_NS if after - now > _LONG_NS else _LATE_NS)
    return after


@compiled("void()")
def rest() -> None:
    """Leave sockets alone for a moment: a look takes the lock that arrivals need."""
    for _ in range(_RESTS):
        pause()


@compiled("int64(int64)")
def progress(link: int) -> int:
    """Send and receive what a link's hop can, unless another thread is at it."""
    moved = 0
    if load(link + _CONTEXT) and take(link + _HOP_LOCK, 1):
        moved = call(load(link + _PROGRESS), load(link + _CONTEXT), 0)
        store_release(link + _HOP_LOCK, 0)
    return moved


@compiled("int64(int64,int64)")
def far_wait(link: int, microseconds: int) -> int:
    """Sleep until something comes by a link's hop, at most so long."""
    return call(load(link + _WAIT), load(link + _CONTEXT), microseconds)


@compiled("int64(int64,int64,int64,int64,int64)")
def far_put(link: int, source: int, offset: int, nbytes: int, lane: int) -> int:
    """Begin to put bytes into the peer's memory by the hop; 0: no room yet."""
    arguments = link + _ARGUMENTS
    enter(link + _HOP_LOCK)
    store(arguments, load(link + _PEER))
    store(arguments + 8, lane)
    store(arguments + 16, source)
    store(arguments + 24, offset)
    store(arguments + 32, nbytes)
    done = call(load(link + _PUT), load(link + _CONTEXT), arguments)
    if not done:
        call(load(link + _PROGRESS), load(link + _CONTEXT), 0)
    store_release(link + _HOP_LOCK, 0)
    return done


@compiled("int64(int64,int64,int64)")
def far_signal(link: int, offset: int, value: int) -> int:
    """Raise a word of the peer's by the hop, after what was put; 0: no room yet."""
    arguments = link + _ARGUMENTS
    enter(link + _HOP_LOCK)
    store(arguments, load(link + _PEER))
    store(arguments + 8, 0)
    store(arguments + 16, offset)
    store(arguments + 24, value)
    store(arguments + 32, _SIDE)
    store(arguments + 40, 0)
    store(arguments + 48, 0)
    store(arguments + 56, 0)
    done = call(load(link + _SIGNAL), load(link + _CONTEXT), arguments)
    if not done:
        call(load(link + _PROGRESS), load(link + _CONTEXT), 0)
    store_release(link + _HOP_LOCK, 0)
    return done


@compiled("int64(int64,int64)")
def post(link: int, record: int) -> int:
    """Post a record; 0: there is no room yet, 1: done, 3: and its reader sleeps."""
    enter(link + _POST_LOCK)
    out = load(link + _OUT)
    tail = load(out + _TAIL)
    place = RING + tail % SLOTS * RECORD
    result = _FULL
    if tail - load(link + _SEEN_HEAD) >= SLOTS:
        store(link + _SEEN_HEAD, load_acquire(out + _HEAD))
    if tail - load(link + _SEEN_HEAD) < SLOTS:
        if load(link + _CONTEXT):
            # A carrier may read it later: it stays here until its slot comes again.
            # What was put without its signal is put again: nobody looked at it.
            _memcpy(out + place, record, RECORD)
            put = far_put(link, out + place, place, RECORD, MORE)
            if put and far_signal(link, _TAIL, tail + 1):
                store(out + _TAIL, tail + 1)
                result = _POSTED
        else:
            _memcpy(out + place, record, RECORD)
            store_release(out + _TAIL, tail + 1)
            fence()
            result = _WAKE if load(out + _ASLEEP) else _POSTED
    store_release(link + _POST_LOCK, 0)
    return result


@compiled("void(int64,int64,int64)")
def taken(link: int, inner: int, head: int) -> None:
    """Note that records before `head` have been taken; a far peer is told at times."""
    store_release(inner + _HEAD, head)
    is_due = load(link + _CONTEXT) and head - load(link + _TOLD) >= _EVERY
    if is_due and far_signal(link, HALF_BYTES + _HEAD, head):
        store(link + _TOLD, head)
