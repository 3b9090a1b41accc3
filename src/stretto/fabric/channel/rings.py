"""Records in and out, compiled: posted and taken by any thread, one at a time.

A channel is the address of its words. What a record announces was stored before it: the
word TAIL is stored last, and who sees it sees the rest.
"""

from __future__ import annotations

from stretto.fabric.channel.words import (
    RECORD,
    RING,
    SLOTS,
    Attention,
    ChannelWord,
    Word,
)
from stretto.fabric.hop.base import MORE, PutCall, SignalCall
from stretto.fabric.jit.atomics import (
    call,
    compiled,
    fence,
    load,
    load_acquire,
    pause,
    store,
    store_release,
    take,
)
from stretto.fabric.jit.libc import memcpy, now_ns, sched_yield
from stretto.fabric.jit.locks import enter, held

__all__ = [
    "far_put", "far_signal", "far_spin", "far_spun", "far_wait", "give_way", "held",
    "pop", "post", "progress", "rest", "taken",
]  # fmt: skip

_SOON_NS, _LATE_NS, _LONG_NS = 3_000, 25_000, 5_000
_LEAST_NS, _TRIED_EVERY = 2_000, 16
_EVERY = SLOTS // 8
"""Records after which the consumer behind a hop says how far it is."""
_FULL, _POSTED, _WAKE = 0, 1, 3
_RESTS = 16


@compiled("int64(int64,int64,int64,int64)")
def give_way(attention: int, clock: int, begun: int, now: int) -> int:
    """Let another process have the core, after a while; return the time.

    A yield that takes long has found somebody, perhaps the peer: then the next comes
    soon. Else it would only cost time.
    """
    if now - begun < load(attention + Attention.ALONE_NS.at):
        return now
    sched_yield()
    after = now_ns(clock)
    store(
        attention + Attention.ALONE_NS.at,
        _SOON_NS if after - now > _LONG_NS else _LATE_NS,
    )
    return after


@compiled("int64(int64)")
def far_spin(attention: int) -> int:
    """Return how long to look at sockets in vain before one sleeps, in ns.

    What comes by a socket wakes who sleeps, sooner than it would be the turn of who has
    yielded where others want the core. Who spins while the peer needs this very core
    only holds it up: so one spins as long as that has paid, and tries it at times.
    """
    waits = load(attention + Attention.WAITS.at) + 1
    store(attention + Attention.WAITS.at, waits)
    most = min(_LATE_NS, load(attention + Attention.SPIN_NS.at))
    if waits % _TRIED_EVERY == 0:
        return most
    return min(most, load(attention + Attention.FAR_SPIN_NS.at))


@compiled("void(int64,int64)")
def far_spun(attention: int, paid: int) -> None:
    """Note whether something came while one spun."""
    spin = attention + Attention.FAR_SPIN_NS.at
    store(spin, _LATE_NS if paid else max(_LEAST_NS, load(spin) // 2))


@compiled("void()")
def rest() -> None:
    """Leave sockets alone for a moment: a look takes the lock that arrivals need."""
    for _ in range(_RESTS):
        pause()


@compiled("int64(int64)")
def progress(channel: int) -> int:
    """Send and receive what a channel's hop can, unless another thread is at it."""
    moved, context = 0, load(channel + ChannelWord.CONTEXT.at)
    # Who has the lock makes progress for all: nobody waits for it here.
    if context and take(channel + ChannelWord.HOP_LOCK.at, 1):
        moved = call(load(channel + ChannelWord.PROGRESS.at), context, 0)
        store_release(channel + ChannelWord.HOP_LOCK.at, 0)
    return moved


@compiled("int64(int64,int64)")
def _asked(channel: int, of: int) -> int:
    """Ask the hop for what the arguments say, and give its lock back; 0: no room."""
    context = load(channel + ChannelWord.CONTEXT.at)
    done = call(load(channel + of), context, channel + ChannelWord.ARGUMENTS.at)
    if not done:  # whoever asks again at once would find it as full as now
        call(load(channel + ChannelWord.PROGRESS.at), context, 0)
    store_release(channel + ChannelWord.HOP_LOCK.at, 0)
    return done


@compiled("int64(int64,int64)")
def far_wait(channel: int, microseconds: int) -> int:
    """Sleep until something comes by a channel's hop, at most so long."""
    return call(
        load(channel + ChannelWord.WAIT.at),
        load(channel + ChannelWord.CONTEXT.at),
        microseconds,
    )


@compiled("int64(int64,int64,int64,int64,int64)")
def far_put(channel: int, source: int, offset: int, nbytes: int, lane: int) -> int:
    """Begin to put bytes into the peer's memory by the hop; 0: no room yet."""
    arguments = channel + ChannelWord.ARGUMENTS.at
    # The lock is of the hop and of the one block of arguments: a hop copies them.
    enter(channel + ChannelWord.HOP_LOCK.at)
    store(arguments + PutCall.PEER.at, load(channel + ChannelWord.PEER.at))
    store(arguments + PutCall.LANE.at, lane)
    store(arguments + PutCall.SOURCE.at, source)
    store(arguments + PutCall.OFFSET.at, offset)
    store(arguments + PutCall.NBYTES.at, nbytes)
    return _asked(channel, ChannelWord.PUT.at)


@compiled("int64(int64,int64,int64)")
def far_signal(channel: int, offset: int, value: int) -> int:
    """Raise a word of the peer's by the hop, after what was put; 0: no room yet."""
    arguments = channel + ChannelWord.ARGUMENTS.at
    enter(channel + ChannelWord.HOP_LOCK.at)
    store(arguments + SignalCall.PEER.at, load(channel + ChannelWord.PEER.at))
    store(arguments + SignalCall.LANE.at, 0)
    store(arguments + SignalCall.OFFSET.at, offset)
    store(arguments + SignalCall.VALUE.at, value)
    store(arguments + SignalCall.SIDE.at, Word.SIDE)
    for i in range(3):
        store(arguments + SignalCall.WORDS.at + 8 * i, 0)
    return _asked(channel, ChannelWord.SIGNAL.at)


@compiled("int64(int64,int64)")
def post(channel: int, record: int) -> int:
    """Post a record; 0: there is no room yet, 1: done, 3: and its reader sleeps."""
    enter(channel + ChannelWord.POST_LOCK.at)
    out = load(channel + ChannelWord.OUT.at)
    tail = load(out + Word.TAIL)
    place = RING + tail % SLOTS * RECORD
    result = _FULL
    # How far the reader is lies in a line that he writes: it is looked at only when
    # what was seen of it last leaves no room.
    if tail - load(channel + ChannelWord.SEEN_HEAD.at) >= SLOTS:
        store(channel + ChannelWord.SEEN_HEAD.at, load_acquire(out + Word.HEAD))
    if tail - load(channel + ChannelWord.SEEN_HEAD.at) < SLOTS:
        if load(channel + ChannelWord.CONTEXT.at):
            # A carrier may read it later: it stays here until its slot comes again.
            # What was put without its signal is put again: nobody looked at it.
            memcpy(out + place, record, RECORD)
            put = far_put(channel, out + place, place, RECORD, MORE)
            if put and far_signal(channel, Word.TAIL, tail + 1):
                store(out + Word.TAIL, tail + 1)
                result = _POSTED
        else:
            memcpy(out + place, record, RECORD)
            store_release(out + Word.TAIL, tail + 1)
            # A reader says that it sleeps, fences and looks once more; we post, fence
            # and look whether it sleeps. One of the two sees the other.
            fence()
            result = _WAKE if load(out + Word.ASLEEP) else _POSTED
    store_release(channel + ChannelWord.POST_LOCK.at, 0)
    return result


@compiled("void(int64,int64,int64)")
def taken(channel: int, inner: int, head: int) -> None:
    """Note that records before `head` have been taken; a far peer is told at times."""
    store_release(inner + Word.HEAD, head)
    if load(channel + ChannelWord.CONTEXT.at) == 0:
        return
    if head - load(channel + ChannelWord.TOLD.at) >= _EVERY:
        half = load(channel + ChannelWord.HALF_BYTES.at)
        if far_signal(channel, half + Word.HEAD, head):
            store(channel + ChannelWord.TOLD.at, head)


@compiled("int64(int64,int64)")
def pop(channel: int, record: int) -> int:
    """Take a record; return whether there was one."""
    inner = load(channel + ChannelWord.IN.at)
    # Most looks find nothing, and shall not make who takes one wait for a lock.
    if load_acquire(inner + Word.TAIL) <= load(inner + Word.HEAD):
        return 0
    enter(channel + ChannelWord.TAKE_LOCK.at)
    head, got = load(inner + Word.HEAD), 0
    if load_acquire(inner + Word.TAIL) > head:
        memcpy(record, inner + RING + head % SLOTS * RECORD, RECORD)
        taken(channel, inner, head + 1)
        got = 1
    store_release(channel + ChannelWord.TAKE_LOCK.at, 0)
    return got
