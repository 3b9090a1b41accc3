"""Puts and gets that a peer keeps ready, compiled: a record each way, and the bytes.

What a peer has prepared is known here by a number: pieces of memory that bytes go to or
come from straight, see `direct`; or, where runs are short or elements are converted, a
job that packs or unpacks. So nothing is read, planned or looked up for it again.

Places in the stage are used and announced in one order, under one lock: giving one back
gives back all before it. Whoever cannot have the lock soon, or finds no room, says so;
the transfer then goes the long way.
"""

from __future__ import annotations

from collections.abc import Callable

from numba import types

from stretto.hop import MORE
from stretto.jit.atomics import (
    compiled,
    load,
    load_acquire,
    store,
    store_release,
    take,
)
from stretto.transfer.copying.words import Status
from stretto.transfer.links import words
from stretto.transfer.links.direct import field_at, is_whole, push, reset, send
from stretto.transfer.links.rings import (
    far_put,
    give_way,
    post,
    progress,
    rest,
    taken,
    time_ns,
)
from stretto.transfer.links.serving import (
    begin,
    carried,
    gave_back,
    post_within,
    serve,
    through,
)
from stretto.transfer.links.words import (
    RECORD,
    RING,
    SLOTS,
    STAGE,
    STAGE_BYTES,
    Ask,
    Attention,
    Block,
    Said,
    Send,
)

__all__ = ["answered", "await_done", "quick", "take_one"]

_memcpy: Callable[[int, int, int], int] = types.ExternalFunction(
    "memcpy", types.int64(types.int64, types.int64, types.int64)
)
_TAIL, _HEAD = int(words.Word.TAIL), int(words.Word.HEAD)
_STAGED, _DONE = int(words.Word.STAGED), int(words.Kind.DONE)
_QUICK_PUT, _QUICK_GET = int(words.Kind.QUICK_PUT), int(words.Kind.QUICK_GET)
_DONE_WELL, _FAILED = int(Status.DONE), int(Status.FAILED)
_NOTIFY = int(words.Kind.NOTIFY)
_IN, _TAKE_LOCK = 8 * Block.IN, 8 * Block.TAKE_LOCK
_STAGE_LOCK = 8 * Block.STAGE_LOCK
_SCRATCH = 8 * Block.SCRATCH
_ASK_LINK, _ASK_JOB, _ASK_KEPT = 8 * Ask.LINK, 8 * Ask.JOB, 8 * Ask.KEPT
_ROWS, _NBYTES, _IS_PUT = 8 * Ask.ROWS, 8 * Ask.NBYTES, 8 * Ask.IS_PUT
_TURN, _BUSY, _ATTENTION = 8 * Ask.TURN, 8 * Ask.BUSY, 8 * Ask.ATTENTION
_IS_HOT, _LOOKED = 8 * Attention.IS_HOT, 8 * Attention.LOOKS
_ASK_FIELD = 8 * Ask.FIELD
_ASK_CANCEL = 8 * Ask.CANCEL
_SPIN_NS, _CLOCK = 8 * Attention.SPIN_NS, 8 * Ask.CLOCK
_IS_BUSY, _IS_COLD, _NO_ROOM = int(Said.BUSY), int(Said.COLD), int(Said.NO_ROOM)
_ASK_SEND, _COPIED = 8 * Ask.SEND, 8 << 10
_FIRST_SEND, _LAST_SEND = 8 * Block.FIRST_SEND, 8 * Block.LAST_SEND
_SEND_RECORD, _SEND_TO = 8 * Send.RECORD, 8 * Send.TO
_SEND_PIECES, _SEND_COUNT = 8 * Send.PIECES, 8 * Send.COUNT
_IS_LOST = int(Said.LOST)
_NOT_YET, _OTHER_FIRST = int(Said.NOT_YET), int(Said.OTHER)
_NOTHING, _NOTICE, _OTHER, _SERVED, _ANSWER = 0, 1, 2, 3, 16
_LOOKS = 4
"""Looks between looks at the clock."""


@compiled("int64(int64,int64)")
def _ask_straight(ask: int, link: int) -> int:
    """Send a put to the peer's field; return whether there was room for it."""
    sending = ask + _ASK_SEND
    record = sending + _SEND_RECORD
    store(record + 16, load(ask + _TURN))
    idle = load(link + _FIRST_SEND) == load(link + _LAST_SEND)
    nbytes = load(ask + _NBYTES)
    if idle and load(sending + _SEND_COUNT) == 1 and nbytes <= _COPIED:
        store(record + 40, load(load(link + _IN) + _STAGED))
        source = load(load(sending + _SEND_PIECES))
        to = load(sending + _SEND_TO)
        put = far_put(link, source, to, nbytes, MORE)
        return 1 if put and post(link, record) else 0
    return 1 if send(link, sending) else 0


@compiled("int64(int64)")
def _ask(ask: int) -> int:
    """Send a put, or ask for a get; return whether there was room for it."""
    link, is_put = load(ask + _ASK_LINK), load(ask + _IS_PUT)
    if is_put and load(ask + _ASK_FIELD):
        return _ask_straight(ask, link)
    if not begin(link):
        return 0
    record, place, sent = link + _SCRATCH, 0, 1
    for i in range(0, RECORD, 8):
        store(record + i, 0)
    store(record, _QUICK_PUT if is_put else _QUICK_GET)
    store(record + 8, load(ask + _ASK_KEPT))
    if is_put:
        nbytes = load(ask + _NBYTES)
        place = carried(link, load(ask + _ASK_JOB), load(ask + _ROWS), nbytes)
        store(record + 32, nbytes)
    if place >= 0:
        sent = post_within(link, record, load(ask + _TURN), place)
    store_release(link + _STAGE_LOCK, 0)
    return 1 if place >= 0 and sent else 0


@compiled("int64(int64,int64,int64)")
def answered(link: int, record: int, ask: int) -> int:
    """Take an answer: what it gives back, and, of a get, what has come."""
    inner, nbytes = load(link + _IN), load(ask + _NBYTES)
    gave_back(link, load(record + 40))
    status, place = load(record + 16), load(record + 24)
    if load(ask + _IS_PUT) or status == _FAILED:
        return status
    if load(ask + _ASK_FIELD):
        field = field_at(link, load(ask + _ASK_FIELD))
        if field == 0:
            return _FAILED
        became = reset(field)
        if status == _DONE_WELL and load(record + 48) != load(ask + _ASK_FIELD):
            return _FAILED
        return became if status == _DONE_WELL else status
    if status != _DONE_WELL:
        return status
    fits = place >= 0 and place % STAGE_BYTES + nbytes <= STAGE_BYTES
    if not fits or load(record + 32) != nbytes:
        return _FAILED
    at = inner + STAGE + place % STAGE_BYTES
    status = through(load(ask + _ASK_JOB), load(ask + _ROWS), at)
    store(inner + _STAGED, place + nbytes)
    return status


@compiled("int64(int64,int64,int64)")
def take_one(link: int, tag: int, ask: int) -> int:
    """Deal with the next record, if it is one that can be dealt with here.

    0: there is none. 1: it was the one notification of that tag. 2: it is something
    else, and left. 3: it was served. 16 and more: it answers `ask`, less 16 its status.
    """
    inner = load(link + _IN)
    if load_acquire(inner + _TAIL) <= load(inner + _HEAD):
        return _NOTHING
    if not take(link + _TAKE_LOCK, 1):
        return _NOTHING
    head, found = load(inner + _HEAD), _NOTHING
    record = inner + RING + head % SLOTS * RECORD
    if load_acquire(inner + _TAIL) > head and is_whole(link, record):
        found, kind = _OTHER, load(record)
        if kind in (_QUICK_PUT, _QUICK_GET):
            scratch = link + _SCRATCH + 2 * RECORD
            _memcpy(scratch, record, RECORD)
            serve(link, scratch)
            taken(link, inner, head + 1)
            found = _SERVED
        elif kind == _NOTIFY and load(record + 8) == tag and load(record + 16) == 1:
            taken(link, inner, head + 1)
            found = _NOTICE
        elif kind == _DONE and ask and load(record + 8) == load(ask + _TURN):
            found = _ANSWER + answered(link, record, ask)
            taken(link, inner, head + 1)
    store_release(link + _TAKE_LOCK, 0)
    return found


@compiled("int64(int64)")
def await_done(ask: int) -> int:
    """Look for an answer; -1: not yet, -2: another record is first; else its status."""
    link, clock = load(ask + _ASK_LINK), ask + _CLOCK
    attention = load(ask + _ATTENTION)
    spin = load(attention + _SPIN_NS)
    begun, vain = 0, 0
    while True:
        found = take_one(link, 0, ask)
        if found >= _ANSWER:
            return found - _ANSWER
        if found == _OTHER:
            return _OTHER_FIRST
        if found == _SERVED or push(link) + progress(link):
            begun, vain = 0, 0
            continue
        rest()
        vain += 1
        if vain % _LOOKS:
            continue
        now = time_ns(clock)
        if begun == 0:
            begun = now
        elif give_way(attention, clock, begun, now) - begun > spin:
            return _NOT_YET


@compiled("int64(int64)")
def quick(ask: int) -> int:
    """Do a prepared transfer, and wait for its answer; return its status, or why not.

    What is not yet answered stays taken: whoever called looks on, and lets it go.
    """
    if load(load(ask + _ASK_CANCEL)):
        return _IS_LOST
    if not take(ask + _BUSY, 1):
        return _IS_BUSY
    attention = load(ask + _ATTENTION)
    if load(attention + _IS_HOT) == 0:
        store_release(ask + _BUSY, 0)
        return _IS_COLD
    store(attention + _LOOKED, load(attention + _LOOKED) + 1)
    store(ask + _TURN, load(ask + _TURN) + 1)
    if not _ask(ask):
        store_release(ask + _BUSY, 0)
        return _NO_ROOM
    status = await_done(ask)
    if status >= 0:
        store_release(ask + _BUSY, 0)
    return status
