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

from stretto.jit.atomics import (
    compiled,
    load,
    load_acquire,
    pause,
    sched_yield,
    store,
    store_release,
    take,
)
from stretto.transfer.copying.compiled import run
from stretto.transfer.copying.words import Job, Status
from stretto.transfer.links import words
from stretto.transfer.links.direct import field_at, is_whole, push, reset, send
from stretto.transfer.links.rings import (
    enter,
    far_put,
    leave,
    post,
    progress,
    taken,
    time_ns,
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
    Kept,
    Said,
    Send,
)

__all__ = ["answered", "await_done", "quick", "serve", "take_one"]

_memcpy: Callable[[int, int, int], int] = types.ExternalFunction(
    "memcpy", types.int64(types.int64, types.int64, types.int64)
)
_TAIL, _HEAD = int(words.Word.TAIL), int(words.Word.HEAD)
_STAGED, _DONE = int(words.Word.STAGED), int(words.Kind.DONE)
_QUICK_PUT, _QUICK_GET = int(words.Kind.QUICK_PUT), int(words.Kind.QUICK_GET)
_DONE_WELL, _FAILED = int(Status.DONE), int(Status.FAILED)
_STALE, _NOTIFY = int(Status.STALE), int(words.Kind.NOTIFY)
_IN, _OUT, _TAKE_LOCK = 8 * Block.IN, 8 * Block.OUT, 8 * Block.TAKE_LOCK
_PLACED, _STAGE_LOCK = 8 * Block.PLACED, 8 * Block.STAGE_LOCK
_KEPT, _NUM_KEPT, _SCRATCH = 8 * Block.KEPT, 8 * Block.NUM_KEPT, 8 * Block.SCRATCH
_ROW, _STOP, _CURSOR = 8 * Job.ROW, 8 * Job.STOP, 8 * Job.CURSOR
_ASK_LINK, _ASK_JOB, _ASK_KEPT = 8 * Ask.LINK, 8 * Ask.JOB, 8 * Ask.KEPT
_ROWS, _NBYTES, _IS_PUT = 8 * Ask.ROWS, 8 * Ask.NBYTES, 8 * Ask.IS_PUT
_TURN, _BUSY, _ATTENTION = 8 * Ask.TURN, 8 * Ask.BUSY, 8 * Ask.ATTENTION
_IS_HOT, _LOOKED = 8 * Attention.IS_HOT, 8 * Attention.LOOKS
_ASK_FIELD, _ASK_PIECES = 8 * Ask.FIELD, 8 * Ask.PIECES
_ASK_COUNT, _ASK_CANCEL = 8 * Ask.COUNT, 8 * Ask.CANCEL
_KEPT_BYTES, _KEPT_FIELD = 8 * Kept.END, 8 * Kept.FIELD
_KEPT_ROWS, _KEPT_NBYTES, _KEPT_KIND = 8 * Kept.ROWS, 8 * Kept.NBYTES, 8 * Kept.KIND
_KEPT_PIECES, _KEPT_COUNT = 8 * Kept.PIECES, 8 * Kept.COUNT
_KEPT_EPOCH, _KEPT_WANT = 8 * Kept.EPOCH, 8 * Kept.WANT
_SENDING, _SEND_RECORD, _SEND_TO = 8 * Block.SENDING, 8 * Send.RECORD, 8 * Send.TO
_SEND_CANCEL, _SEND_EPOCH = 8 * Send.CANCEL, 8 * Send.EPOCH
_SEND_PIECES, _SEND_COUNT = 8 * Send.PIECES, 8 * Send.COUNT
_SEND_WANT, _SEND_LOCK = 8 * Send.WANT, 8 * Block.SENDING_LOCK
_SPIN_NS, _CLOCK = 8 * Attention.SPIN_NS, 8 * Ask.CLOCK
_IS_BUSY, _IS_COLD, _NO_ROOM = int(Said.BUSY), int(Said.COLD), int(Said.NO_ROOM)
_NOT_YET, _OTHER_FIRST = int(Said.NOT_YET), int(Said.OTHER)
_NOTHING, _NOTICE, _OTHER, _SERVED, _ANSWER = 0, 1, 2, 3, 16
_TRIES = 2000
_BEFORE_OTHERS = 16
"""Looks in vain before another process may have the core."""


@compiled("int64(int64)")
def _begin(link: int) -> int:
    """Take the stage, if that is possible soon; return whether it was."""
    for _ in range(_TRIES):
        if take(link + _STAGE_LOCK, 1):
            return 1
        pause()
    return 0


@compiled("int64(int64,int64)")
def _placed(link: int, nbytes: int) -> int:
    """Return where in the stage so many bytes may go, or -1; the lock is held."""
    begin = load(link + _PLACED)
    if begin % STAGE_BYTES + nbytes > STAGE_BYTES:
        begin += STAGE_BYTES - begin % STAGE_BYTES
    if begin + nbytes - load_acquire(load(link + _OUT) + _STAGED) > STAGE_BYTES:
        return -1
    store(link + _PLACED, begin + nbytes)
    return begin


@compiled("int64(int64,int64,int64)")
def _through(job: int, rows: int, cursor: int) -> int:
    """Pack or unpack all runs of a job; return its status."""
    store(job + _ROW, 0)
    store(job + _STOP, rows)
    store(job + _CURSOR, cursor)
    return run(job)


@compiled("int64(int64,int64,int64,int64)")
def _carried(link: int, job: int, rows: int, nbytes: int) -> int:
    """Pack a job, and have the hop bring it; return the place, or -1."""
    before = load(link + _PLACED)
    place = _placed(link, nbytes)
    if place >= 0:
        at = load(link + _OUT) + STAGE + place % STAGE_BYTES
        _through(job, rows, at)
        for _ in range(_TRIES):
            if far_put(link, at, STAGE + place % STAGE_BYTES, nbytes, 0):
                return place
            pause()
        store(link + _PLACED, before)
    return -1


@compiled("void(int64,int64)")
def _gave_back(link: int, staged: int) -> None:
    """Note how much of the stage the peer has given back."""
    out = load(link + _OUT)
    if load(out + _STAGED) < staged <= load(link + _PLACED):
        store(out + _STAGED, staged)


@compiled("int64(int64,int64,int64,int64)")
def _post(link: int, record: int, first: int, second: int) -> int:
    """Post a record, with what this end has given back as its sixth word.

    0: for a while there was no room for it.
    """
    store(record + 16, first)
    store(record + 24, second)
    store(record + 40, load(load(link + _IN) + _STAGED))
    for _ in range(_TRIES):
        if post(link, record):
            return 1
        progress(link)
        pause()
    return 0


@compiled("void(int64,int64,int64,int64,int64)")
def _send(link: int, pieces: int, count: int, to: int, record: int) -> None:
    """Write what shall be sent without the stage, but for what may stop it."""
    sending = link + _SENDING
    for i in range(0, _SEND_RECORD, 8):
        store(sending + i, 0)
    store(sending + _SEND_PIECES, pieces)
    store(sending + _SEND_COUNT, count)
    store(sending + _SEND_TO, to)
    _memcpy(sending + _SEND_RECORD, record, RECORD)


@compiled("void(int64,int64,int64,int64)")
def _answer(link: int, record: int, first: int, second: int) -> None:
    """Post an answer, or queue it: nobody waits for a peer that reads nothing.

    There is room in the queue, or others were quicker; then the peer hears nothing.
    """
    store(record + 16, first)
    store(record + 24, second)
    store(record + 40, load(load(link + _IN) + _STAGED))
    if post(link, record):
        return
    enter(link + _SEND_LOCK)
    _send(link, 0, 0, 0, record)
    send(link, link + _SENDING)
    leave(link + _SEND_LOCK)


@compiled("void(int64,int64,int64)")
def _send_kept(link: int, kept: int, answer: int) -> None:
    """Begin to send what a peer gets; there is room for it in the queue."""
    epoch = load(kept + _KEPT_EPOCH)
    nbytes, to = load(kept + _KEPT_NBYTES), load(kept + _KEPT_FIELD)
    store(answer + 24, -1)
    if epoch and load_acquire(epoch) != load(kept + _KEPT_WANT):
        _answer(link, answer, _STALE, -1)
        return
    store(answer + 16, _DONE_WELL)
    store(answer + 48, to)
    store(answer + 56, nbytes)
    enter(link + _SEND_LOCK)
    _send(link, load(kept + _KEPT_PIECES), load(kept + _KEPT_COUNT), to, answer)
    store(link + _SENDING + _SEND_EPOCH, epoch)
    store(link + _SENDING + _SEND_WANT, load(kept + _KEPT_WANT))
    sent = send(link, link + _SENDING)
    leave(link + _SEND_LOCK)
    if not sent:  # others were quicker: the peer goes the long way
        store(answer + 48, 0)
        _answer(link, answer, _FAILED, -1)


@compiled("int64(int64,int64,int64)")
def _unpacked(link: int, record: int, kept: int) -> int:
    """Put what a peer has put where it belongs; return a status."""
    inner, place, nbytes = load(link + _IN), load(record + 24), load(record + 32)
    if nbytes != load(kept + _KEPT_NBYTES):
        return _FAILED
    if place < 0:
        field = field_at(link, load(kept + _KEPT_FIELD))
        if field == 0 or load(record + 48) != load(kept + _KEPT_FIELD):
            return _FAILED
        return reset(field)
    if place % STAGE_BYTES + nbytes > STAGE_BYTES or load(kept) == 0:
        return _FAILED
    at = inner + STAGE + place % STAGE_BYTES
    status = _through(load(kept), load(kept + _KEPT_ROWS), at)
    store(inner + _STAGED, place + nbytes)
    return status


@compiled("void(int64,int64)")
def serve(link: int, record: int) -> None:
    """Do a put or a get that is kept here, and answer; nonsense has failed.

    The answer is written behind the record.
    """
    nth, turn = load(record + 8), load(record + 16)
    answer = record + RECORD
    for i in range(0, RECORD, 8):
        store(answer + i, 0)
    store(answer, _DONE)
    store(answer + 8, turn)
    _gave_back(link, load(record + 40))
    status, kept, kind = _FAILED, 0, 0
    if 0 <= nth < load(link + _NUM_KEPT):
        kept = load(link + _KEPT) + _KEPT_BYTES * nth
        kind = load(kept + _KEPT_KIND)
    if kind == 1 and load(record) == _QUICK_PUT:
        status = _unpacked(link, record, kept)
    elif kind == 2 and load(record) == _QUICK_GET:
        if load(kept + _KEPT_FIELD):
            _send_kept(link, kept, answer)
            return
        if _begin(link):
            nbytes = load(kept + _KEPT_NBYTES)
            place = _carried(link, load(kept), load(kept + _KEPT_ROWS), nbytes)
            store(answer + 32, nbytes)
            _answer(link, answer, _DONE_WELL if place >= 0 else _FAILED, place)
            store_release(link + _STAGE_LOCK, 0)
            return
    _answer(link, answer, status, 0)


@compiled("int64(int64)")
def _ask(ask: int) -> int:
    """Send a put, or ask for a get; return whether there was room for it."""
    link = load(ask + _ASK_LINK)
    if not _begin(link):
        return 0
    record, place, sent = link + _SCRATCH, 0, 1
    nbytes = load(ask + _NBYTES)
    for i in range(0, RECORD, 8):
        store(record + i, 0)
    store(record, _QUICK_PUT if load(ask + _IS_PUT) else _QUICK_GET)
    store(record + 8, load(ask + _ASK_KEPT))
    if load(ask + _IS_PUT) == 0:
        sent = _post(link, record, load(ask + _TURN), 0)
    elif load(ask + _ASK_FIELD):
        store(record + 16, load(ask + _TURN))
        store(record + 24, -1)
        store(record + 32, nbytes)
        store(record + 48, load(ask + _ASK_FIELD))
        store(record + 56, nbytes)
        to, count = load(ask + _ASK_FIELD), load(ask + _ASK_COUNT)
        enter(link + _SEND_LOCK)
        _send(link, load(ask + _ASK_PIECES), count, to, record)
        store(link + _SENDING + _SEND_CANCEL, load(ask + _ASK_CANCEL))
        sent = send(link, link + _SENDING)
        leave(link + _SEND_LOCK)
    else:
        place = _carried(link, load(ask + _ASK_JOB), load(ask + _ROWS), nbytes)
        store(record + 32, nbytes)
        if place >= 0:
            sent = _post(link, record, load(ask + _TURN), place)
    store_release(link + _STAGE_LOCK, 0)
    return 1 if place >= 0 and sent else 0


@compiled("int64(int64,int64,int64)")
def answered(link: int, record: int, ask: int) -> int:
    """Take an answer: what it gives back, and, of a get, what has come."""
    inner, nbytes = load(link + _IN), load(ask + _NBYTES)
    _gave_back(link, load(record + 40))
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
    status = _through(load(ask + _ASK_JOB), load(ask + _ROWS), at)
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
    spin = load(load(ask + _ATTENTION) + _SPIN_NS)
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
        vain += 1
        if vain % _BEFORE_OTHERS:
            continue
        sched_yield()  # the peer may be waiting for this core
        now = time_ns(clock)
        if begun == 0:
            begun = now
        elif now - begun > spin:
            return _NOT_YET


@compiled("int64(int64)")
def quick(ask: int) -> int:
    """Do a prepared transfer, and wait for its answer; return its status, or why not.

    What is not yet answered stays taken: whoever called looks on, and lets it go.
    """
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
