"""Puts and gets that a peer keeps ready, compiled: a record each way, and the bytes.

What a peer has prepared is known here by a number: pieces of memory that bytes go to or
come from straight, see `direct`; or, where runs are short or elements are converted, a
job that packs or unpacks. So nothing is read, planned or looked up for it again.

Places in the stage are used and announced in one order, under one lock: giving one back
gives back all before it. Whoever cannot have the lock soon, or finds no room, says so;
the transfer then goes the long way.
"""

from __future__ import annotations

from stretto.fabric.channel.rings import (
    far_put,
    far_spin,
    far_spun,
    post,
    progress,
    rest,
    taken,
)
from stretto.fabric.channel.words import (
    RECORD,
    RING,
    SLOTS,
    Attention,
    ChannelWord,
    Word,
)
from stretto.fabric.hop import MORE
from stretto.fabric.jit.atomics import (
    compiled,
    load,
    load_acquire,
    store,
    store_release,
    take,
)
from stretto.fabric.jit.libc import memcpy, now_ns
from stretto.transfer.copying.words import Status
from stretto.transfer.links.direct import field_at, is_whole, push, reset, send
from stretto.transfer.links.serving import (
    begin,
    carried,
    gave_back,
    post_within,
    serve,
    through,
)
from stretto.transfer.links.words import (
    STAGE,
    STAGE_BYTES,
    Ask,
    Block,
    Kind,
    Said,
    Send,
)

__all__ = ["answered", "await_done", "quick", "take_one"]

_COPIED = 8 << 10
_NOTHING, _NOTICE, _OTHER, _SERVED, _ANSWER = 0, 1, 2, 3, 16
_LOOKS = 4
"""Looks between looks at the clock."""


@compiled("int64(int64,int64)")
def _ask_straight(ask: int, link: int) -> int:
    """Send a put to the peer's field; return whether there was room for it."""
    sending = ask + Ask.SEND.at
    record = sending + Send.RECORD.at
    store(record + 16, load(ask + Ask.TURN.at))
    idle = load(link + Block.FIRST_SEND.at) == load(link + Block.LAST_SEND.at)
    nbytes = load(ask + Ask.NBYTES.at)
    if idle and load(sending + Send.COUNT.at) == 1 and nbytes <= _COPIED:
        store(record + 40, load(load(link + ChannelWord.IN.at) + Word.STAGED))
        source = load(load(sending + Send.PIECES.at))
        to = load(sending + Send.TO.at)
        put = far_put(link, source, to, nbytes, MORE)
        return 1 if put and post(link, record) else 0
    return 1 if send(link, sending) else 0


@compiled("int64(int64)")
def _ask(ask: int) -> int:
    """Send a put, or ask for a get; return whether there was room for it."""
    link, is_put = load(ask + Ask.LINK.at), load(ask + Ask.IS_PUT.at)
    if is_put and load(ask + Ask.FIELD.at):
        return _ask_straight(ask, link)
    if not begin(link):
        return 0
    record, place, sent = link + Block.SCRATCH.at, 0, 1
    for i in range(0, RECORD, 8):
        store(record + i, 0)
    store(record, Kind.QUICK_PUT if is_put else Kind.QUICK_GET)
    store(record + 8, load(ask + Ask.KEPT.at))
    if is_put:
        nbytes = load(ask + Ask.NBYTES.at)
        place = carried(link, load(ask + Ask.JOB.at), load(ask + Ask.ROWS.at), nbytes)
        store(record + 32, nbytes)
    if place >= 0:
        sent = post_within(link, record, load(ask + Ask.TURN.at), place)
    store_release(link + Block.STAGE_LOCK.at, 0)
    return 1 if place >= 0 and sent else 0


@compiled("int64(int64,int64,int64)")
def answered(link: int, record: int, ask: int) -> int:
    """Take an answer: what it gives back, and, of a get, what has come."""
    inner, nbytes = load(link + ChannelWord.IN.at), load(ask + Ask.NBYTES.at)
    gave_back(link, load(record + 40))
    status, place = load(record + 16), load(record + 24)
    if load(ask + Ask.IS_PUT.at) or status == Status.FAILED:
        return status
    if load(ask + Ask.FIELD.at):
        field = field_at(link, load(ask + Ask.FIELD.at))
        if field == 0:
            return Status.FAILED
        became = reset(field)
        if status == Status.DONE and load(record + 48) != load(ask + Ask.FIELD.at):
            return Status.FAILED
        return became if status == Status.DONE else status
    if status != Status.DONE:
        return status
    fits = place >= 0 and place % STAGE_BYTES + nbytes <= STAGE_BYTES
    if not fits or load(record + 32) != nbytes:
        return Status.FAILED
    at = inner + STAGE + place % STAGE_BYTES
    status = through(load(ask + Ask.JOB.at), load(ask + Ask.ROWS.at), at)
    store(inner + Word.STAGED, place + nbytes)
    return status


@compiled("int64(int64,int64,int64)")
def take_one(link: int, tag: int, ask: int) -> int:
    """Deal with the next record, if it is one that can be dealt with here.

    0: there is none. 1: it was the one notification of that tag. 2: it is something
    else, and left. 3: it was served. 16 and more: it answers `ask`, less 16 its status.
    """
    inner = load(link + ChannelWord.IN.at)
    if load_acquire(inner + Word.TAIL) <= load(inner + Word.HEAD):
        return _NOTHING
    if not take(link + ChannelWord.TAKE_LOCK.at, 1):
        return _NOTHING
    head, found = load(inner + Word.HEAD), _NOTHING
    record = inner + RING + head % SLOTS * RECORD
    if load_acquire(inner + Word.TAIL) > head and is_whole(link, record):
        found, kind = _OTHER, load(record)
        if kind in (Kind.QUICK_PUT, Kind.QUICK_GET):
            scratch = link + Block.SCRATCH.at + 2 * RECORD
            memcpy(scratch, record, RECORD)
            serve(link, scratch)
            taken(link, inner, head + 1)
            found = _SERVED
        elif kind == Kind.NOTIFY and load(record + 8) == tag and load(record + 16) == 1:
            taken(link, inner, head + 1)
            found = _NOTICE
        elif kind == Kind.DONE and ask and load(record + 8) == load(ask + Ask.TURN.at):
            found = _ANSWER + answered(link, record, ask)
            taken(link, inner, head + 1)
    store_release(link + ChannelWord.TAKE_LOCK.at, 0)
    return found


@compiled("int64(int64)")
def await_done(ask: int) -> int:
    """Look for an answer; -1: not yet, -2: another record is first; else its status."""
    link, clock = load(ask + Ask.LINK.at), ask + Ask.CLOCK.at
    attention = load(ask + Ask.ATTENTION.at)
    begun, vain, spin = 0, 0, far_spin(attention)
    while True:
        found = take_one(link, 0, ask)
        if found >= _ANSWER:
            far_spun(attention, 1)
            return found - _ANSWER
        if found == _OTHER:
            return Said.OTHER
        if found == _SERVED or push(link) + progress(link):
            begun, vain = 0, 0
            continue
        rest()
        vain += 1
        if vain % _LOOKS:
            continue
        now = now_ns(clock)
        if begun == 0:
            begun = now
        elif now - begun > spin:
            far_spun(attention, 0)
            return Said.NOT_YET


@compiled("int64(int64)")
def quick(ask: int) -> int:
    """Do a prepared transfer, and wait for its answer; return its status, or why not.

    What is not yet answered stays taken: whoever called looks on, and lets it go.
    """
    if load(load(ask + Ask.CANCEL.at)):
        return Said.LOST
    if not take(ask + Ask.BUSY.at, 1):
        return Said.BUSY
    attention = load(ask + Ask.ATTENTION.at)
    if load(attention + Attention.IS_HOT.at) == 0:
        store_release(ask + Ask.BUSY.at, 0)
        return Said.COLD
    store(attention + Attention.LOOKS.at, load(attention + Attention.LOOKS.at) + 1)
    store(ask + Ask.TURN.at, load(ask + Ask.TURN.at) + 1)
    if not _ask(ask):
        store_release(ask + Ask.BUSY.at, 0)
        return Said.NO_ROOM
    status = await_done(ask)
    if status >= 0:
        store_release(ask + Ask.BUSY.at, 0)
    return status
