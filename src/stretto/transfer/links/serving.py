"""What is done for a peer that asks for what is kept ready, compiled.

Whoever cannot have the stage soon, or finds no room, says so: nobody waits for a peer
that reads nothing.
"""

from __future__ import annotations

from stretto.fabric.channel.rings import far_put, post, progress
from stretto.fabric.channel.words import RECORD, ChannelWord, Word
from stretto.fabric.jit.atomics import (
    compiled,
    load,
    load_acquire,
    pause,
    store,
    store_release,
    take,
)
from stretto.fabric.jit.libc import memcpy
from stretto.fabric.jit.locks import enter, leave
from stretto.transfer.copying.compiled import run
from stretto.transfer.copying.words import Job, Status
from stretto.transfer.links.direct import field_at, reset, send
from stretto.transfer.links.words import STAGE, STAGE_BYTES, Block, Kept, Kind, Send

_TRIES = 2000


@compiled("int64(int64)")
def begin(link: int) -> int:
    """Take the stage, if that is possible soon; return whether it was."""
    for _ in range(_TRIES):
        if take(link + Block.STAGE_LOCK.at, 1):
            return 1
        pause()
    return 0


@compiled("int64(int64,int64)")
def _placed(link: int, nbytes: int) -> int:
    """Return where in the stage so many bytes may go, or -1; the lock is held."""
    begin = load(link + Block.PLACED.at)
    if begin % STAGE_BYTES + nbytes > STAGE_BYTES:
        begin += STAGE_BYTES - begin % STAGE_BYTES
    staged = load_acquire(load(link + ChannelWord.OUT.at) + Word.STAGED)
    if begin + nbytes - staged > STAGE_BYTES:
        return -1
    store(link + Block.PLACED.at, begin + nbytes)
    return begin


@compiled("int64(int64,int64,int64)")
def through(job: int, rows: int, cursor: int) -> int:
    """Pack or unpack all runs of a job; return its status."""
    store(job + Job.ROW.at, 0)
    store(job + Job.STOP.at, rows)
    store(job + Job.CURSOR.at, cursor)
    return run(job)


@compiled("int64(int64,int64,int64,int64)")
def carried(link: int, job: int, rows: int, nbytes: int) -> int:
    """Pack a job, and have the hop bring it; return the place.

    -1: there is no room, or the memory is not what it was; nothing was said of it.
    """
    before = load(link + Block.PLACED.at)
    place = _placed(link, nbytes)
    if place >= 0:
        at = load(link + ChannelWord.OUT.at) + STAGE + place % STAGE_BYTES
        status = through(job, rows, at)
        for _ in range(_TRIES):
            if status != Status.DONE:
                break
            if far_put(link, at, STAGE + place % STAGE_BYTES, nbytes, 0):
                return place
            pause()
        store(link + Block.PLACED.at, before)
    return -1


@compiled("void(int64,int64)")
def gave_back(link: int, staged: int) -> None:
    """Note how much of the stage the peer has given back."""
    out = load(link + ChannelWord.OUT.at)
    if load(out + Word.STAGED) < staged <= load(link + Block.PLACED.at):
        store(out + Word.STAGED, staged)


@compiled("int64(int64,int64,int64,int64)")
def post_within(link: int, record: int, first: int, second: int) -> int:
    """Post a record, with what this end has given back as its sixth word.

    0: for a while there was no room for it.
    """
    store(record + 16, first)
    store(record + 24, second)
    store(record + 40, load(load(link + ChannelWord.IN.at) + Word.STAGED))
    for _ in range(_TRIES):
        if post(link, record):
            return 1
        progress(link)
        pause()
    return 0


@compiled("void(int64,int64,int64,int64,int64)")
def write_send(link: int, pieces: int, count: int, to: int, record: int) -> None:
    """Write what shall be sent without the stage, but for what may stop it."""
    sending = link + Block.SENDING.at
    for i in range(0, Send.RECORD.at, 8):
        store(sending + i, 0)
    store(sending + Send.PIECES.at, pieces)
    store(sending + Send.COUNT.at, count)
    store(sending + Send.TO.at, to)
    memcpy(sending + Send.RECORD.at, record, RECORD)


@compiled("void(int64,int64,int64,int64)")
def _answer(link: int, record: int, first: int, second: int) -> None:
    """Post an answer, or queue it: nobody waits for a peer that reads nothing.

    There is room in the queue, or others were quicker; then the peer hears nothing.
    """
    store(record + 16, first)
    store(record + 24, second)
    store(record + 40, load(load(link + ChannelWord.IN.at) + Word.STAGED))
    if post(link, record):
        return
    enter(link + Block.SENDING_LOCK.at)
    write_send(link, 0, 0, 0, record)
    send(link, link + Block.SENDING.at)
    leave(link + Block.SENDING_LOCK.at)


@compiled("void(int64,int64,int64)")
def _send_kept(link: int, kept: int, answer: int) -> None:
    """Begin to send what a peer gets; there is room for it in the queue."""
    epoch = load(kept + Kept.EPOCH.at)
    nbytes, to = load(kept + Kept.NBYTES.at), load(kept + Kept.FIELD.at)
    store(answer + 24, -1)
    if epoch and load_acquire(epoch) != load(kept + Kept.WANT.at):
        _answer(link, answer, Status.STALE, -1)
        return
    store(answer + 16, Status.DONE)
    store(answer + 48, to)
    store(answer + 56, nbytes)
    enter(link + Block.SENDING_LOCK.at)
    write_send(
        link, load(kept + Kept.PIECES.at), load(kept + Kept.COUNT.at), to, answer
    )
    store(link + Block.SENDING.at + Send.EPOCH.at, epoch)
    store(link + Block.SENDING.at + Send.WANT.at, load(kept + Kept.WANT.at))
    sent = send(link, link + Block.SENDING.at)
    leave(link + Block.SENDING_LOCK.at)
    if not sent:  # others were quicker: the peer goes the long way
        store(answer + 48, 0)
        _answer(link, answer, Status.FAILED, -1)


@compiled("int64(int64,int64,int64)")
def _unpacked(link: int, record: int, kept: int) -> int:
    """Put what a peer has put where it belongs; return a status."""
    inner = load(link + ChannelWord.IN.at)
    place, nbytes = load(record + 24), load(record + 32)
    if nbytes != load(kept + Kept.NBYTES.at):
        return Status.FAILED
    if place < 0:
        field = field_at(link, load(kept + Kept.FIELD.at))
        if field == 0 or load(record + 48) != load(kept + Kept.FIELD.at):
            return Status.FAILED
        return reset(field)
    if place % STAGE_BYTES + nbytes > STAGE_BYTES or load(kept) == 0:
        return Status.FAILED
    at = inner + STAGE + place % STAGE_BYTES
    status = through(load(kept), load(kept + Kept.ROWS.at), at)
    store(inner + Word.STAGED, place + nbytes)
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
    store(answer, Kind.DONE)
    store(answer + 8, turn)
    gave_back(link, load(record + 40))
    status: int = Status.FAILED
    kept, kind = 0, 0
    if 0 <= nth < load(link + Block.NUM_KEPT.at):
        kept = load(link + Block.KEPT.at) + Kept.END.at * nth
        kind = load(kept + Kept.KIND.at)
    if kind == 1 and load(record) == Kind.QUICK_PUT:
        status = _unpacked(link, record, kept)
    elif kind == 2 and load(record) == Kind.QUICK_GET:
        if load(kept + Kept.FIELD.at):
            _send_kept(link, kept, answer)
            return
        if begin(link):
            nbytes = load(kept + Kept.NBYTES.at)
            place = carried(link, load(kept), load(kept + Kept.ROWS.at), nbytes)
            store(answer + 32, nbytes)
            _answer(link, answer, Status.DONE if place >= 0 else Status.FAILED, place)
            store_release(link + Block.STAGE_LOCK.at, 0)
            return
    _answer(link, answer, status, 0)
