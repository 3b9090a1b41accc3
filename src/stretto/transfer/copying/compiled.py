"""The copying loops, compiled to run without the interpreter's lock.

`run` moves the runs of a transfer, from word ROW to word STOP, and keeps ROW at what is
next: so it can be called for any part, and again for the rest.

Before it touches a peer's memory it says so in a word that the peer reads (MARK), and
then looks whether the memory still has the epoch that it was named with. The owner
first changes the epoch, then waits until nobody says so: one of the two sees the other.
"""

from __future__ import annotations

from stretto.fabric.jit.atomics import (
    compiled,
    fence,
    load,
    load_acquire,
    store,
    store_release,
)
from stretto.fabric.jit.libc import (
    errno_at,
    memcpy,
    process_vm_readv,
    process_vm_writev,
)
from stretto.transfer.copying.elements import convert_run
from stretto.transfer.copying.intrinsics import load8, stream
from stretto.transfer.copying.words import (
    AXES_AT,
    BOX_WORDS,
    DEPTH,
    PIECES,
    Job,
    Mode,
    Status,
)

_BOX_BYTES, _AXES = 8 * BOX_WORDS, 8 * AXES_AT
_INNER = _AXES + 24 * (DEPTH - 1)
_STREAMED = 1024
"""Shorter runs do not go past the caches."""
_FACTOR, _OFFSET = -7046029254386353131, 1442695040888963407
_MOST_AT_ONCE = 8 << 20


@compiled("void(int64,int64,int64,int64)")
def copy(dst: int, src: int, nbytes: int, past: int) -> None:
    """Copy bytes; past the caches, where that is asked for."""
    if past and nbytes >= _STREAMED:
        stream(dst, src, nbytes)
    elif nbytes == 8:
        store(dst, load(src))
    else:
        memcpy(dst, src, nbytes)


@compiled("int64(int64,int64,int64)")
def summed(at: int, nbytes: int, total: int) -> int:
    """Return a sum of bytes, which depends on their order, going on from another."""
    whole = nbytes // 8
    for i in range(whole):
        total = (total ^ load(at + 8 * i)) * _FACTOR + _OFFSET
    for i in range(8 * whole, nbytes):
        total = (total ^ load8(at + i)) * _FACTOR + _OFFSET
    return total


@compiled("int64(int64,int64,int64)")
def _send(job: int, mode: int, count: int) -> int:
    """Have the kernel move what is listed; return whether it did."""
    local, remote = load(job + Job.LOCAL.at), load(job + Job.REMOTE.at)
    total = 0
    for i in range(count):
        total += load(local + 16 * i + 8)
    if mode == Mode.WRITE:
        got = process_vm_writev(load(job + Job.PID.at), local, count, remote, count, 0)
    else:
        got = process_vm_readv(load(job + Job.PID.at), local, count, remote, count, 0)
    if got == total:
        store(job + Job.MOVED.at, load(job + Job.MOVED.at) + total)
        return 1
    store(job + Job.ERROR.at, load(errno_at()) & 0xFFFFFFFF if got < 0 else 14)
    return 0


@compiled("int64(int64,int64,int64,int64,int64,int64)")
def _list(job: int, mode: int, count: int, dst: int, src: int, nbytes: int) -> int:
    """Add a run to what the kernel shall move; return how many there are."""
    here = src if mode == Mode.WRITE else dst
    there = dst if mode == Mode.WRITE else src
    local, remote = load(job + Job.LOCAL.at), load(job + Job.REMOTE.at)
    if count:
        last, far = local + 16 * count - 16, remote + 16 * count - 16
        has = load(last + 8)
        if load(last) + has == here and load(far) + has == there:
            store(last + 8, has + nbytes)
            store(far + 8, has + nbytes)
            return count
    store(local + 16 * count, here)
    store(local + 16 * count + 8, nbytes)
    store(remote + 16 * count, there)
    store(remote + 16 * count + 8, nbytes)
    return count + 1


@compiled("void(int64,int64,int64,int64,int64,int64)")
def _one(job: int, mode: int, dst: int, src: int, src_run: int, dst_run: int) -> None:
    """Move, or sum, one run within this process."""
    if mode >= Mode.SUM_SRC:
        at, nbytes = (src, src_run) if mode == Mode.SUM_SRC else (dst, dst_run)
        store(job + Job.SUM.at, summed(at, nbytes, load(job + Job.SUM.at)))
        return
    convert = load(job + Job.CONVERT.at)
    if convert and mode != Mode.PACK:
        convert_run(
            convert,
            load(job + Job.TABLE.at),
            dst,
            src,
            src_run // load(job + Job.SRC_ITEM.at),
        )
    else:
        copy(dst, src, src_run, load(job + Job.STREAM.at))


@compiled("int64(int64,int64,int64,int64,int64)")
def _copied(job: int, box: int, dst: int, src: int, many: int) -> int:
    """Copy runs that follow one another along a box's last axis; return a status."""
    run, past, cancel = (
        load(box + 40),
        load(job + Job.STREAM.at),
        load(job + Job.CANCEL.at),
    )
    src_step, dst_step = load(box + _INNER + 8), load(box + _INNER + 16)
    at_once = max(1, load(job + Job.CHECK.at) // max(1, run))
    done = 0
    while done < many:
        if load_acquire(cancel):
            return Status.CANCELLED
        few = min(many - done, at_once)
        for _ in range(few):
            copy(dst, src, run, past)
            src += src_step
            dst += dst_step
        done += few
        store(job + Job.ROW.at, load(job + Job.ROW.at) + few)
        store(job + Job.MOVED.at, load(job + Job.MOVED.at) + few * run)
    return Status.DONE


@compiled("int64(int64,int64,int64,int64,int64)")
def _given(job: int, box: int, dst: int, src: int, many: int) -> int:
    """Have the kernel move such runs: many of them at once, also of several boxes."""
    mode, run, cancel = (
        load(job + Job.MODE.at),
        load(box + 40),
        load(job + Job.CANCEL.at),
    )
    src_step, dst_step = load(box + _INNER + 8), load(box + _INNER + 16)
    for _ in range(many):
        listed = _list(job, mode, load(job + Job.LISTED.at), dst, src, run)
        waiting = load(job + Job.WAITING.at) + run
        src += src_step
        dst += dst_step
        if listed == PIECES or waiting >= _MOST_AT_ONCE:
            if not _send(job, mode, listed):
                return Status.FAILED
            listed, waiting = 0, 0
        store(job + Job.LISTED.at, listed)
        store(job + Job.WAITING.at, waiting)
        store(job + Job.ROW.at, load(job + Job.ROW.at) + 1)
        if listed == 0 and load_acquire(cancel):
            return Status.CANCELLED
    return Status.DONE


@compiled("int64(int64,int64,int64,int64,int64)")
def _turned(job: int, box: int, dst: int, src: int, many: int) -> int:
    """Pack, unpack, convert or sum such runs."""
    mode, cursor = load(job + Job.MODE.at), load(job + Job.CURSOR.at)
    src_run, dst_run = load(box + 32), load(box + 40)
    src_step, dst_step = load(box + _INNER + 8), load(box + _INNER + 16)
    if load_acquire(load(job + Job.CANCEL.at)):
        return Status.CANCELLED
    for _ in range(many):
        if mode == Mode.PACK:
            _one(job, mode, cursor, src, src_run, src_run)
        elif mode == Mode.UNPACK:
            _one(job, mode, dst, cursor, src_run, dst_run)
        else:
            _one(job, mode, dst, src, src_run, dst_run)
        cursor += src_run
        src += src_step
        dst += dst_step
    store(job + Job.CURSOR.at, cursor)
    store(job + Job.ROW.at, load(job + Job.ROW.at) + many)
    store(job + Job.MOVED.at, load(job + Job.MOVED.at) + many * dst_run)
    return Status.DONE


@compiled("int64(int64)")
def _walk(job: int) -> int:
    """Go through the runs, along the last axis of a box at a time; return a status."""
    mode, stop = load(job + Job.MODE.at), load(job + Job.STOP.at)
    chunk_rows = load(job + Job.CHUNK_ROWS.at)
    plain = load(job + Job.CONVERT.at) == 0 and mode == Mode.COPY
    store(job + Job.LISTED.at, 0)
    store(job + Job.WAITING.at, 0)
    while load(job + Job.ROW.at) < stop:
        row = load(job + Job.ROW.at)
        chunk, inside = row // chunk_rows, row % chunk_rows
        box = load(job + Job.BOXES.at)
        while inside >= load(box + 48):
            inside -= load(box + 48)
            box += _BOX_BYTES
        src = load(load(job + Job.SRC_BASES.at) + 8 * load(box)) + load(box + 16)
        dst = load(load(job + Job.DST_BASES.at) + 8 * load(box + 8)) + load(box + 24)
        src += load(load(job + Job.SRC_AT.at) + 8 * chunk)
        dst += load(load(job + Job.DST_AT.at) + 8 * chunk)
        axis, rest = box + _INNER, inside
        many = min(load(axis) - rest % load(axis), stop - row)
        while rest:
            size = load(axis)
            src += rest % size * load(axis + 8)
            dst += rest % size * load(axis + 16)
            rest //= size
            axis -= 24
        if plain:
            status = _copied(job, box, dst, src, many)
        elif mode in (Mode.WRITE, Mode.READ):
            status = _given(job, box, dst, src, many)
        else:
            status = _turned(job, box, dst, src, many)
        if status != Status.DONE:
            return status
    if load(job + Job.LISTED.at) and not _send(job, mode, load(job + Job.LISTED.at)):
        return Status.FAILED
    return Status.DONE


@compiled("int64(int64)")
def run(job: int) -> int:
    """Move the runs of a transfer; return a `Status`."""
    mark, epoch = load(job + Job.MARK.at), load(job + Job.EPOCH.at)
    if mark:
        store(mark, load(job + Job.WANT.at))
        fence()
    status: int = Status.DONE
    if epoch and load_acquire(epoch) != load(job + Job.WANT.at):
        status = Status.STALE
    elif load_acquire(load(job + Job.CANCEL.at)):
        status = Status.CANCELLED
    else:
        status = _walk(job)
    if load(job + Job.STREAM.at):
        fence()
    if mark:
        store_release(mark, 0)
    return status
