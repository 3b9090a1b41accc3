"""Puts and gets that a peer keeps ready, compiled: a record each way, and the bytes.

What a peer has prepared is known here by a number: a job that packs or unpacks. So
nothing is read, planned or looked up for a small transfer between hosts.

Places in the stage are used and announced in one order, under one lock: giving one back
gives back all before it. Whoever cannot have the lock soon, or finds no room, says so;
the transfer then goes the long way.
"""

from __future__ import annotations

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
from stretto.transfer.links.rings import far_put, post, progress, taken
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
)

__all__ = ["answered", "await_done", "quick", "serve"]

_TAIL, _HEAD = int(words.Word.TAIL), int(words.Word.HEAD)
_STAGED, _DONE = int(words.Word.STAGED), int(words.Kind.DONE)
_QUICK_PUT, _QUICK_GET = int(words.Kind.QUICK_PUT), int(words.Kind.QUICK_GET)
_DONE_WELL, _FAILED = int(Status.DONE), int(Status.FAILED)
_IN, _OUT, _TAKE_LOCK = 8 * Block.IN, 8 * Block.OUT, 8 * Block.TAKE_LOCK
_PLACED, _STAGE_LOCK = 8 * Block.PLACED, 8 * Block.STAGE_LOCK
_KEPT, _NUM_KEPT, _SCRATCH = 8 * Block.KEPT, 8 * Block.NUM_KEPT, 8 * Block.SCRATCH
_ROW, _STOP, _CURSOR = 8 * Job.ROW, 8 * Job.STOP, 8 * Job.CURSOR
_ASK_LINK, _ASK_JOB, _ASK_KEPT = 8 * Ask.LINK, 8 * Ask.JOB, 8 * Ask.KEPT
_ROWS, _NBYTES, _IS_PUT = 8 * Ask.ROWS, 8 * Ask.NBYTES, 8 * Ask.IS_PUT
_TURN, _BUSY, _ATTENTION = 8 * Ask.TURN, 8 * Ask.BUSY, 8 * Ask.ATTENTION
_IS_HOT, _LOOKED = 8 * Attention.IS_HOT, 8 * Attention.LOOKS
_NOT_YET, _OTHER_FIRST, _IS_BUSY = int(Said.NOT_YET), int(Said.OTHER), int(Said.BUSY)
_IS_COLD, _NO_ROOM = int(Said.COLD), int(Said.NO_ROOM)
_LOOKS = 400
"""Looks in vain before the interpreter goes on."""
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
    place = _placed(link, nbytes)
    if place >= 0:
        at = load(link + _OUT) + STAGE + place % STAGE_BYTES
        _through(job, rows, at)
        while not far_put(link, at, STAGE + place % STAGE_BYTES, nbytes):
            pause()
    return place


@compiled("void(int64,int64)")
def _gave_back(link: int, staged: int) -> None:
    """Note how much of the stage the peer has given back."""
    out = load(link + _OUT)
    if load(out + _STAGED) < staged <= load(link + _PLACED):
        store(out + _STAGED, staged)


@compiled("void(int64,int64,int64,int64)")
def _post(link: int, record: int, first: int, second: int) -> None:
    """Post a record, with what this end has given back as its sixth word."""
    store(record + 16, first)
    store(record + 24, second)
    store(record + 40, load(load(link + _IN) + _STAGED))
    while not post(link, record):
        progress(link)
        pause()


@compiled("void(int64,int64)")
def serve(link: int, record: int) -> None:
    """Do a put or a get that is kept here, and answer; nonsense has failed.

    The answer is written behind the record.
    """
    inner, kept = load(link + _IN), load(record + 8)
    answer, turn = record + RECORD, load(record + 16)
    store(answer, _DONE)
    store(answer + 8, turn)
    _gave_back(link, load(record + 40))
    status, entry = _FAILED, 0
    if 0 <= kept < load(link + _NUM_KEPT):
        entry = load(link + _KEPT) + 32 * kept
    if entry and load(record) == _QUICK_PUT and load(entry + 24) == 1:
        place, nbytes = load(record + 24), load(entry + 16)
        fits = place >= 0 and place % STAGE_BYTES + nbytes <= STAGE_BYTES
        if fits and load(record + 32) == nbytes:
            at = inner + STAGE + place % STAGE_BYTES
            status = _through(load(entry), load(entry + 8), at)
            store(inner + _STAGED, place + nbytes)
    gets = entry and load(record) == _QUICK_GET and load(entry + 24) == 2
    if gets and _begin(link):
        place = _carried(link, load(entry), load(entry + 8), load(entry + 16))
        store(answer + 32, load(entry + 16))
        done = _DONE_WELL if place >= 0 else _FAILED
        _post(link, answer, done, place)
        store_release(link + _STAGE_LOCK, 0)
        return
    store(answer + 32, 0)
    _post(link, answer, status, 0)


@compiled("int64(int64)")
def _ask(ask: int) -> int:
    """Send a put, or ask for a get; return whether there was room for it."""
    link = load(ask + _ASK_LINK)
    if not _begin(link):
        return 0
    record, place = link + _SCRATCH, 0
    store(record + 8, load(ask + _ASK_KEPT))
    store(record, _QUICK_GET)
    if load(ask + _IS_PUT):
        nbytes = load(ask + _NBYTES)
        place = _carried(link, load(ask + _ASK_JOB), load(ask + _ROWS), nbytes)
        store(record, _QUICK_PUT)
        store(record + 32, nbytes)
    if place >= 0:
        _post(link, record, load(ask + _TURN), place)
    store_release(link + _STAGE_LOCK, 0)
    return 1 if place >= 0 else 0


@compiled("int64(int64,int64,int64,int64,int64)")
def answered(link: int, record: int, job: int, rows: int, nbytes: int) -> int:
    """Take an answer: what it gives back, and, of a get, what has come."""
    inner = load(link + _IN)
    _gave_back(link, load(record + 40))
    status, place = load(record + 16), load(record + 24)
    if job == 0 or status != _DONE_WELL:
        return status
    fits = place >= 0 and place % STAGE_BYTES + nbytes <= STAGE_BYTES
    if not fits or load(record + 32) != nbytes:
        return _FAILED
    status = _through(job, rows, inner + STAGE + place % STAGE_BYTES)
    store(inner + _STAGED, place + nbytes)
    return status


@compiled("int64(int64,int64)")
def await_done(ask: int, looks: int) -> int:
    """Look for an answer; -1: not yet, -2: another record is first; else its status."""
    link, turn = load(ask + _ASK_LINK), load(ask + _TURN)
    inner = load(link + _IN)
    for nth in range(looks):
        if load_acquire(inner + _TAIL) <= load(inner + _HEAD):
            progress(link)
            if nth % _BEFORE_OTHERS == _BEFORE_OTHERS - 1:
                sched_yield()  # the peer may be waiting for this core
            continue
        if not take(link + _TAKE_LOCK, 1):
            return _OTHER_FIRST
        head, status = load(inner + _HEAD), _OTHER_FIRST
        record = inner + RING + head % SLOTS * RECORD
        is_there = load_acquire(inner + _TAIL) > head
        if is_there and load(record) == _DONE and load(record + 8) == turn:
            job = 0 if load(ask + _IS_PUT) else load(ask + _ASK_JOB)
            status = answered(
                link, record, job, load(ask + _ROWS), load(ask + _NBYTES)
            )
            taken(link, inner, head + 1)
        store_release(link + _TAKE_LOCK, 0)
        return status
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
    status = await_done(ask, _LOOKS)
    if status >= 0:
        store_release(ask + _BUSY, 0)
    return status
