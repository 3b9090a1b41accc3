"""The copying loops, compiled to run without the interpreter's lock.

`run` moves the runs of a transfer, from word ROW to word STOP, and keeps ROW at what is
next: so it can be called for any part, and again for the rest.

Before it touches a peer's memory it says so in a word that the peer reads (MARK), and
then looks whether the memory still has the epoch that it was named with. The owner
first changes the epoch, then waits until nobody says so: one of the two sees the other.
"""

from __future__ import annotations

from collections.abc import Callable

from numba import types

from stretto.jit.atomics import (
    compiled,
    fence,
    load,
    load_acquire,
    store,
    store_release,
)
from stretto.transfer.copying import words
from stretto.transfer.copying.elements import convert_run
from stretto.transfer.copying.intrinsics import load8, stream
from stretto.transfer.copying.words import AXES_AT, BOX_WORDS, DEPTH, PIECES, Job

__all__ = ["copy", "run"]

_memcpy: Callable[[int, int, int], int] = types.ExternalFunction(
    "memcpy", types.int64(types.int64, types.int64, types.int64)
)
_writev: Callable[[int, int, int, int, int, int], int] = types.ExternalFunction(
    "process_vm_writev",
    types.int64(
        types.int32, types.int64, types.int64, types.int64, types.int64, types.int64
    ),
)
_readv: Callable[[int, int, int, int, int, int], int] = types.ExternalFunction(
    "process_vm_readv",
    types.int64(
        types.int32, types.int64, types.int64, types.int64, types.int64, types.int64
    ),
)
_errno_at: Callable[[], int] = types.ExternalFunction("__errno_location", types.int64())

_COPY, _WRITE, _READ = int(words.Mode.COPY), int(words.Mode.WRITE), int(words.Mode.READ)
_PACK, _UNPACK = int(words.Mode.PACK), int(words.Mode.UNPACK)
_SUM_SRC = int(words.Mode.SUM_SRC)
_DONE, _CANCELLED = int(words.Status.DONE), int(words.Status.CANCELLED)
_STALE, _FAILED = int(words.Status.STALE), int(words.Status.FAILED)
_MODE, _BOXES, _NUM_BOXES = 8 * Job.MODE, 8 * Job.BOXES, 8 * Job.NUM_BOXES
_SRC_BASES, _DST_BASES = 8 * Job.SRC_BASES, 8 * Job.DST_BASES
_SRC_AT, _DST_AT = 8 * Job.SRC_AT, 8 * Job.DST_AT
_CHUNK_ROWS, _ROW, _STOP = 8 * Job.CHUNK_ROWS, 8 * Job.ROW, 8 * Job.STOP
_CURSOR, _PID = 8 * Job.CURSOR, 8 * Job.PID
_LOCAL, _REMOTE = 8 * Job.LOCAL, 8 * Job.REMOTE
_CONVERT, _TABLE = 8 * Job.CONVERT, 8 * Job.TABLE
_SRC_ITEM, _DST_ITEM = 8 * Job.SRC_ITEM, 8 * Job.DST_ITEM
_STREAM, _ERROR, _MOVED = 8 * Job.STREAM, 8 * Job.ERROR, 8 * Job.MOVED
_SUM, _CANCEL, _MARK = 8 * Job.SUM, 8 * Job.CANCEL, 8 * Job.MARK
_EPOCH, _WANT, _CHECK = 8 * Job.EPOCH, 8 * Job.WANT, 8 * Job.CHECK
_LISTED, _WAITING = 8 * Job.LISTED, 8 * Job.WAITING
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
        _memcpy(dst, src, nbytes)


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
    local, remote = load(job + _LOCAL), load(job + _REMOTE)
    total = 0
    for i in range(count):
        total += load(local + 16 * i + 8)
    if mode == _WRITE:
        got = _writev(load(job + _PID), local, count, remote, count, 0)
    else:
        got = _readv(load(job + _PID), local, count, remote, count, 0)
    if got == total:
        store(job + _MOVED, load(job + _MOVED) + total)
        return 1
    store(job + _ERROR, load(_errno_at()) & 0xFFFFFFFF if got < 0 else 14)
    return 0


@compiled("int64(int64,int64,int64,int64,int64,int64)")
def _list(job: int, mode: int, count: int, dst: int, src: int, nbytes: int) -> int:
    """Add a run to what the kernel shall move; return how many there are."""
    here = src if mode == _WRITE else dst
    there = dst if mode == _WRITE else src
    local, remote = load(job + _LOCAL), load(job + _REMOTE)
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
    if mode >= _SUM_SRC:
        at, nbytes = (src, src_run) if mode == _SUM_SRC else (dst, dst_run)
        store(job + _SUM, summed(at, nbytes, load(job + _SUM)))
        return
    convert = load(job + _CONVERT)
    if convert and mode != _PACK:
        convert_run(
            convert, load(job + _TABLE), dst, src, src_run // load(job + _SRC_ITEM)
        )
    else:
        copy(dst, src, src_run, load(job + _STREAM))


@compiled("int64(int64,int64,int64,int64,int64)")
def _copied(job: int, box: int, dst: int, src: int, many: int) -> int:
    """Copy runs that follow one another along a box's last axis; return a status."""
    run, past, cancel = load(box + 40), load(job + _STREAM), load(job + _CANCEL)
    src_step, dst_step = load(box + _INNER + 8), load(box + _INNER + 16)
    at_once = max(1, load(job + _CHECK) // max(1, run))
    done = 0
    while done < many:
        if load_acquire(cancel):
            return _CANCELLED
        few = min(many - done, at_once)
        for _ in range(few):
            copy(dst, src, run, past)
            src += src_step
            dst += dst_step
        done += few
        store(job + _ROW, load(job + _ROW) + few)
        store(job + _MOVED, load(job + _MOVED) + few * run)
    return _DONE


@compiled("int64(int64,int64,int64,int64,int64)")
def _given(job: int, box: int, dst: int, src: int, many: int) -> int:
    """Have the kernel move such runs: many of them at once, also of several boxes."""
    mode, run, cancel = load(job + _MODE), load(box + 40), load(job + _CANCEL)
    src_step, dst_step = load(box + _INNER + 8), load(box + _INNER + 16)
    for _ in range(many):
        listed = _list(job, mode, load(job + _LISTED), dst, src, run)
        waiting = load(job + _WAITING) + run
        src += src_step
        dst += dst_step
        if listed == PIECES or waiting >= _MOST_AT_ONCE:
            if not _send(job, mode, listed):
                return _FAILED
            listed, waiting = 0, 0
        store(job + _LISTED, listed)
        store(job + _WAITING, waiting)
        store(job + _ROW, load(job + _ROW) + 1)
        if listed == 0 and load_acquire(cancel):
            return _CANCELLED
    return _DONE


@compiled("int64(int64,int64,int64,int64,int64)")
def _turned(job: int, box: int, dst: int, src: int, many: int) -> int:
    """Pack, unpack, convert or sum such runs."""
    mode, cursor = load(job + _MODE), load(job + _CURSOR)
    src_run, dst_run = load(box + 32), load(box + 40)
    src_step, dst_step = load(box + _INNER + 8), load(box + _INNER + 16)
    if load_acquire(load(job + _CANCEL)):
        return _CANCELLED
    for _ in range(many):
        if mode == _PACK:
            _one(job, mode, cursor, src, src_run, src_run)
        elif mode == _UNPACK:
            _one(job, mode, dst, cursor, src_run, dst_run)
        else:
            _one(job, mode, dst, src, src_run, dst_run)
        cursor += src_run
        src += src_step
        dst += dst_step
    store(job + _CURSOR, cursor)
    store(job + _ROW, load(job + _ROW) + many)
    store(job + _MOVED, load(job + _MOVED) + many * dst_run)
    return _DONE


@compiled("int64(int64)")
def _walk(job: int) -> int:
    """Go through the runs, along the last axis of a box at a time; return a status."""
    mode, stop = load(job + _MODE), load(job + _STOP)
    chunk_rows = load(job + _CHUNK_ROWS)
    plain = load(job + _CONVERT) == 0 and mode == _COPY
    store(job + _LISTED, 0)
    store(job + _WAITING, 0)
    while load(job + _ROW) < stop:
        row = load(job + _ROW)
        chunk, inside = row // chunk_rows, row % chunk_rows
        box = load(job + _BOXES)
        while inside >= load(box + 48):
            inside -= load(box + 48)
            box += _BOX_BYTES
        src = load(load(job + _SRC_BASES) + 8 * load(box)) + load(box + 16)
        dst = load(load(job + _DST_BASES) + 8 * load(box + 8)) + load(box + 24)
        src += load(load(job + _SRC_AT) + 8 * chunk)
        dst += load(load(job + _DST_AT) + 8 * chunk)
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
        elif mode in (_WRITE, _READ):
            status = _given(job, box, dst, src, many)
        else:
            status = _turned(job, box, dst, src, many)
        if status != _DONE:
            return status
    if load(job + _LISTED) and not _send(job, mode, load(job + _LISTED)):
        return _FAILED
    return _DONE


@compiled("int64(int64)")
def run(job: int) -> int:
    """Move the runs of a transfer; return a `Status`."""
    mark, epoch = load(job + _MARK), load(job + _EPOCH)
    if mark:
        store(mark, load(job + _WANT))
        fence()
    status = _DONE
    if epoch and load_acquire(epoch) != load(job + _WANT):
        status = _STALE
    elif load_acquire(load(job + _CANCEL)):
        status = _CANCELLED
    else:
        status = _walk(job)
    if load(job + _STREAM):
        fence()
    if mark:
        store_release(mark, 0)
    return status
