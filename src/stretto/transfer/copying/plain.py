"""The copying loops by NumPy: for where Numba is not, or not yet loaded.

They read and keep the same words as the compiled ones.
"""

from __future__ import annotations

import ctypes
import os
import threading
from typing import Any

import numpy as np
from numpy.lib.stride_tricks import as_strided
from numpy.typing import NDArray

from stretto.transfer.copying.words import AXES_AT, BOX_WORDS, DEPTH, Job, Mode, Status

__all__ = ["bytes_at", "run"]

_fence = threading.Lock()
_MASK = (1 << 64) - 1
_FACTOR, _OFFSET = -7046029254386353131 & _MASK, 1442695040888963407


def bytes_at(address: int, nbytes: int) -> NDArray[np.uint8]:
    """Return memory as an array of bytes."""
    return np.asarray(memoryview((ctypes.c_uint8 * nbytes).from_address(address)))


def _words(address: int, count: int) -> NDArray[np.int64]:
    return bytes_at(address, 8 * count).view(np.int64)


def fence() -> None:
    """Let nothing after it begin before all before it is seen: a lock does that."""
    with _fence:
        return


def run(job: NDArray[np.int64], convert: Any = None) -> int:
    """Move the runs of a transfer; return a `Status`.

    `convert` turns elements of the source into those of the destination, as bytes.
    """
    word = [int(w) for w in job]
    if word[Job.MARK]:
        _words(word[Job.MARK], 1)[0] = word[Job.WANT]
        fence()
    try:
        epoch = word[Job.EPOCH]
        if epoch and int(_words(epoch, 1)[0]) != word[Job.WANT]:
            return Status.STALE
        return _walk(job, word, convert)
    finally:
        if word[Job.MARK]:
            _words(word[Job.MARK], 1)[0] = 0


def _walk(job: NDArray[np.int64], word: list[int], convert: Any) -> int:
    boxes = _words(word[Job.BOXES], word[Job.NUM_BOXES] * BOX_WORDS)
    boxes = boxes.reshape(-1, BOX_WORDS)
    rows_of = [int(box[6]) for box in boxes]
    row = word[Job.ROW]
    chunk, inside = divmod(row, word[Job.CHUNK_ROWS])
    while row < word[Job.STOP]:
        for box, rows in zip(boxes, rows_of, strict=True):
            if inside >= rows:
                inside -= rows
                continue
            first, last = inside, min(rows, inside + word[Job.STOP] - row)
            inside = 0
            if last > first:
                if word[Job.CANCEL] and int(_words(word[Job.CANCEL], 1)[0]):
                    return Status.CANCELLED
                error = _box(job, word, box, chunk, first, last, convert)
                if error:
                    job[Job.ERROR] = error
                    return Status.FAILED
                row += last - first
                job[Job.ROW] = row
        chunk += 1
    return Status.DONE


def _box(
    job: NDArray[np.int64], word: list[int], box: NDArray[np.int64], chunk: int,
    first: int, last: int, convert: Any,
) -> int:  # fmt: skip
    """Move runs of a box, from one number to another; return what went wrong, or 0."""
    b = [int(w) for w in box]
    axes = [b[AXES_AT + 3 * i : AXES_AT + 3 * i + 3] for i in range(DEPTH)]
    mode = Mode(word[Job.MODE])
    src = _begin(word[Job.SRC_BASES], b[0], b[2], word[Job.SRC_AT], chunk)
    dst = _begin(word[Job.DST_BASES], b[1], b[3], word[Job.DST_AT], chunk)
    part = first or last < b[6]
    index = np.arange(first, last) if part else None
    if mode in (Mode.WRITE, Mode.READ):
        return _by_kernel(word, mode, src, dst, axes, b[4], first, last, job)
    sizes, src_steps, dst_steps = zip(*axes, strict=True)
    from_, to = b[4], b[5]
    packed = last - first
    if mode is Mode.PACK:
        out = bytes_at(word[Job.CURSOR], packed * from_).reshape(packed, from_)
        out[...] = _view(src, sizes, src_steps, from_, index)
    elif mode is Mode.UNPACK:
        came = bytes_at(word[Job.CURSOR], packed * from_).reshape(packed, from_)
        _store(dst, sizes, dst_steps, to, index, _turned(came, convert, to))
    elif mode is Mode.COPY:
        rows = _view(src, sizes, src_steps, from_, index)
        _store(dst, sizes, dst_steps, to, index, _turned(rows, convert, to))
    else:
        at, steps, each = (
            (src, src_steps, from_) if mode is Mode.SUM_SRC else (dst, dst_steps, to)
        )
        rows = np.ascontiguousarray(_view(at, sizes, steps, each, index))
        job[Job.SUM] = _summed(rows, int(job[Job.SUM]))
        return 0
    if mode in (Mode.PACK, Mode.UNPACK):
        word[Job.CURSOR] += packed * from_
        job[Job.CURSOR] = word[Job.CURSOR]
    job[Job.MOVED] += packed * to
    return 0


def _begin(bases: int, part: int, at: int, chunks: int, chunk: int) -> int:
    base = int(_words(bases + 8 * part, 1)[0])
    return base + at + int(_words(chunks + 8 * chunk, 1)[0])


def _array(at: int, sizes: Any, steps: Any, run: int) -> NDArray[np.uint8]:
    reach = sum((n - 1) * s for n, s in zip(sizes, steps, strict=True)) + run
    flat = bytes_at(at, reach)
    return as_strided(flat, (*sizes, run), (*steps, 1))


def _view(at: int, sizes: Any, steps: Any, run: int, index: Any) -> NDArray[np.uint8]:
    """Return runs as rows, those of an index where there is one."""
    whole = _array(at, sizes, steps, run)
    if index is None:
        return whole.reshape(-1, run)
    picked: NDArray[np.uint8] = whole[np.unravel_index(index, sizes)]
    return picked


def _store(
    at: int, sizes: Any, steps: Any, run: int, index: Any, rows: NDArray[np.uint8]
) -> None:
    whole = _array(at, sizes, steps, run)
    if index is None:
        whole[...] = rows.reshape(whole.shape)
    else:
        whole[np.unravel_index(index, sizes)] = rows


def _turned(rows: NDArray[np.uint8], convert: Any, run: int) -> NDArray[np.uint8]:
    if convert is None:
        return rows
    made: NDArray[np.uint8] = convert(np.ascontiguousarray(rows)).reshape(-1, run)
    return made


def _summed(rows: NDArray[np.uint8], total: int) -> int:
    """Return the sum that the compiled loops return; slowly."""
    total &= _MASK
    whole = rows.shape[1] // 8
    for row in rows:
        values = row[: 8 * whole].view(np.uint64).tolist() + row[8 * whole :].tolist()
        for value in values:
            total = ((total ^ value) * _FACTOR + _OFFSET) & _MASK
    return total - (1 << 64) if total >> 63 else total


class _Piece(ctypes.Structure):
    _fields_ = (("base", ctypes.c_void_p), ("size", ctypes.c_size_t))


def _by_kernel(
    word: list[int], mode: Mode, src: int, dst: int, axes: list[list[int]], run: int,
    first: int, last: int, job: NDArray[np.int64],
) -> int:  # fmt: skip
    """Have the kernel move runs, one after the other."""
    libc = ctypes.CDLL(None, use_errno=True)
    call = libc.process_vm_writev if mode is Mode.WRITE else libc.process_vm_readv
    call.restype = ctypes.c_ssize_t
    sizes, src_steps, dst_steps = zip(*axes, strict=True)
    for nth in range(first, last):
        place = np.unravel_index(nth, sizes)
        a = src + sum(int(p) * s for p, s in zip(place, src_steps, strict=True))
        b = dst + sum(int(p) * s for p, s in zip(place, dst_steps, strict=True))
        here, there = (a, b) if mode is Mode.WRITE else (b, a)
        mine, theirs = _Piece(here, run), _Piece(there, run)
        got = call(
            word[Job.PID], ctypes.byref(mine), ctypes.c_ulong(1), ctypes.byref(theirs),
            ctypes.c_ulong(1), ctypes.c_ulong(0),
        )  # fmt: skip
        if got != run:
            return ctypes.get_errno() if got < 0 else 14
        job[Job.MOVED] += run
    return os.EX_OK
