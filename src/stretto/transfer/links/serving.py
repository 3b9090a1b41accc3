"""What is done for a peer that asks for what is kept ready, compiled.

Whoever cannot have the stage soon, or finds no room, says so: nobody waits for a peer
that reads nothing.
"""

from __future__ import annotations

from collections.abc import Callable

from numba import types

from stretto.jit.atomics import (
    compiled,
    load,
    load_acquire,
    pause,
    store,
    store_release,
    take,
)
from stretto.jit.locks import enter, leave
from stretto.transfer.copying.compiled import run
from stretto.transfer.copying.words import Job, Status
from stretto.transfer.links import words
from stretto.transfer.links.direct import field_at, reset, send
from stretto.transfer.links.rings import (
    far_put,
    post,
    progress,
)
from stretto.transfer.links.words import (
    RECORD,
    STAGE,
    STAGE_BYTES,
    Block,
    Kept,
    Send,
)

__all__ = [
    "begin",
    "carried",
    "gave_back",
    "post_within",
    "serve",
    "through",
    "write_send",
]

_memcpy: Callable[[int, int, int], int] = types.ExternalFunction(
    "memcpy", types.int64(types.int64, types.int64, types.int64)
)
_STAGED, _DONE = int(words.Word.STAGED), int(words.Kind.DONE)
_QUICK_PUT, _QUICK_GET = int(words.Kind.QUICK_PUT), int(words.Kind.QUICK_GET)
_DONE_WELL, _FAILED = int(Status.DONE), int(Status.FAILED)
_STALE = int(Status.STALE)
_IN, _OUT = 8 * Block.IN, 8 * Block.OUT
_PLACED, _STAGE_LOCK = 8 * Block.PLACED, 8 * Block.STAGE_LOCK
_KEPT, _NUM_KEPT = 8 * Block.KEPT, 8 * Block.NUM_KEPT
_ROW, _STOP, _CURSOR = 8 * Job.ROW, 8 * Job.STOP, 8 * Job.CURSOR
_KEPT_BYTES, _KEPT_FIELD = 8 * Kept.END, 8 * Kept.FIELD
_KEPT_ROWS, _KEPT_NBYTES, _KEPT_KIND = 8 * Kept.ROWS, 8 * Kept.NBYTES, 8 * Kept.KIND
_KEPT_PIECES, _KEPT_COUNT = 8 * Kept.PIECES, 8 * Kept.COUNT
_KEPT_EPOCH, _KEPT_WANT = 8 * Kept.EPOCH, 8 * Kept.WANT
_SENDING, _SEND_RECORD, _SEND_TO = 8 * Block.SENDING, 8 * Send.RECORD, 8 * Send.TO
_SEND_EPOCH = 8 * Send.EPOCH
_SEND_PIECES, _SEND_COUNT = 8 * Send.PIECES, 8 * Send.COUNT
_SEND_WANT, _SEND_LOCK = 8 * Send.WANT, 8 * Block.SENDING_LOCK
_TRIES = 2000


@compiled("int64(int64)")
def begin(link: int) -> int:
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
def through(job: int, rows: int, cursor: int) -> int:
    """Pack or unpack all runs of a job; return its status."""
    store(job + _ROW, 0)
    store(job + _STOP, rows)
    store(job + _CURSOR, cursor)
    return run(job)


@compiled("int64(int64,int64,int64,int64)")
def carried(link: int, job: int, rows: int, nbytes: int) -> int:
    """Pack a job, and have the hop bring it; return the place, or -1."""
    before = load(link + _PLACED)
    place = _placed(link, nbytes)
    if place >= 0:
        at = load(link + _OUT) + STAGE + place % STAGE_BYTES
        through(job, rows, at)
        for _ in range(_TRIES):
            if far_put(link, at, STAGE + place % STAGE_BYTES, nbytes, 0):
                return place
            pause()
        store(link + _PLACED, before)
    return -1


@compiled("void(int64,int64)")
def gave_back(link: int, staged: int) -> None:
    """Note how much of the stage the peer has given back."""
    out = load(link + _OUT)
    if load(out + _STAGED) < staged <= load(link + _PLACED):
        store(out + _STAGED, staged)


@compiled("int64(int64,int64,int64,int64)")
def post_within(link: int, record: int, first: int, second: int) -> int:
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
def write_send(link: int, pieces: int, count: int, to: int, record: int) -> None:
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
    write_send(link, 0, 0, 0, record)
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
    write_send(link, load(kept + _KEPT_PIECES), load(kept + _KEPT_COUNT), to, answer)
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
    status = through(load(kept), load(kept + _KEPT_ROWS), at)
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
    gave_back(link, load(record + 40))
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
        if begin(link):
            nbytes = load(kept + _KEPT_NBYTES)
            place = carried(link, load(kept), load(kept + _KEPT_ROWS), nbytes)
            store(answer + 32, nbytes)
            _answer(link, answer, _DONE_WELL if place >= 0 else _FAILED, place)
            store_release(link + _STAGE_LOCK, 0)
            return
    _answer(link, answer, status, 0)
