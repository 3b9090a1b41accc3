"""Everything of links that is compiled: what waits and what repeats is here.

Waiting takes the notification that it waits for, serves what a peer has kept ready, and
leaves everything else to whoever drains the link.
"""

from __future__ import annotations

from collections.abc import Callable

from numba import types

from stretto.jit.atomics import (
    clock_gettime,
    compiled,
    fence,
    load,
    load_acquire,
    pause,
    sched_yield,
    store,
    store_release,
    take,
)
from stretto.transfer.copying.compiled import run
from stretto.transfer.copying.words import Job
from stretto.transfer.links import words
from stretto.transfer.links.quick import (
    answered,
    await_done,
    quick,
    serve,
)
from stretto.transfer.links.rings import (
    enter,
    far_put,
    far_signal,
    leave,
    pop,
    post,
    progress,
    taken,
)
from stretto.transfer.links.words import (
    MARKS,
    NUM_MARKS,
    RECORD,
    RING,
    SLOTS,
    Attention,
    Block,
    Look,
    Said,
)

__all__ = [
    "again",
    "answered",
    "await_done",
    "await_record",
    "enter",
    "far_put",
    "far_signal",
    "fence_now",
    "leave",
    "marked",
    "pop",
    "post",
    "progress",
    "quick",
    "run",
    "serve",
]

_memcpy: Callable[[int, int, int], int] = types.ExternalFunction(
    "memcpy", types.int64(types.int64, types.int64, types.int64)
)
_MONOTONIC = 1
_TAIL, _HEAD = int(words.Word.TAIL), int(words.Word.HEAD)
_NOTIFY = int(words.Kind.NOTIFY)
_QUICK_PUT, _QUICK_GET = int(words.Kind.QUICK_PUT), int(words.Kind.QUICK_GET)
_IN, _CONTEXT, _TAKE_LOCK = 8 * Block.IN, 8 * Block.CONTEXT, 8 * Block.TAKE_LOCK
_SCRATCH = 8 * Block.SCRATCH
_LOOKS = 32
"""Looks at all links between looks at the clock."""
_ROW, _MOVED, _STOP = 8 * Job.ROW, 8 * Job.MOVED, 8 * Job.STOP
_CLOCK, _COUNT, _LINKS = 8 * Look.CLOCK, 8 * Look.COUNT, 8 * Look.LINKS
_ATTENTION = 8 * Look.ATTENTION
_IS_HOT, _LOOKED = 8 * Attention.IS_HOT, 8 * Attention.LOOKS
_IS_COLD = int(Said.COLD)
_ALONE_NS = 5_000
"""Nanoseconds of looking before another process may have the core."""


@compiled("int64(int64,int64)")
def _take_notice(link: int, tag: int) -> int:
    """Take the next record if it is that notification; 2: it is something else."""
    inner = load(link + _IN)
    if load_acquire(inner + _TAIL) <= load(inner + _HEAD):
        return 0
    if not take(link + _TAKE_LOCK, 1):
        return 0
    head = load(inner + _HEAD)
    found = 0
    if load_acquire(inner + _TAIL) > head:
        record = inner + RING + head % SLOTS * RECORD
        found = 2
        one = load(record + 16) == 1
        kind = load(record)
        if kind in (_QUICK_PUT, _QUICK_GET):
            scratch = link + _SCRATCH + 2 * RECORD
            _memcpy(scratch, record, RECORD)
            taken(link, inner, head + 1)
            serve(link, scratch)
            store_release(link + _TAKE_LOCK, 0)
            return 3
        if kind == _NOTIFY and load(record + 8) == tag and one:
            taken(link, inner, head + 1)
            found = 1
    store_release(link + _TAKE_LOCK, 0)
    return found


@compiled("int64(int64)")
def _now(clock: int) -> int:
    clock_gettime(_MONOTONIC, clock)
    return load(clock) * 1_000_000_000 + load(clock + 8)


@compiled("int64(int64,int64)")
def await_record(look: int, tag: int) -> int:
    """Look at links for a while; 1: that notification came once, 2: another record.

    It is taken if it is the one; whatever else there is, is left. 0: nothing came.
    `look` is the address of the words of `Look`.
    """
    begun, looks = 0, 0
    attention = load(look + _ATTENTION)
    if load(attention + _IS_HOT) == 0:
        return _IS_COLD
    store(attention + _LOOKED, load(attention + _LOOKED) + 1)
    count = load(look + _COUNT)
    while True:
        for i in range(count):
            link = load(look + _LINKS + 8 * i)
            found = _take_notice(link, tag)
            if found == 3:  # it was served: there may be more at once
                begun, found = 0, 0
            if found:
                return found
            if load(link + _CONTEXT):
                progress(link)
        looks += 1
        if looks % _LOOKS == 0:
            now = _now(look + _CLOCK)
            if begun == 0:
                begun = now
            elif now - begun >= load(look):
                return 0
            elif now - begun > _ALONE_NS:
                sched_yield()  # the peer may be waiting for this core
        pause()


@compiled("int64(int64,int64,int64,int64)")
def again(job: int, rows: int, link: int, record: int) -> int:
    """Do a prepared transfer, and post its notification, if it has one.

    Return 8 x its status, and what `post` says.
    """
    store(job + _ROW, 0)
    store(job + _MOVED, 0)
    store(job + _STOP, rows)
    status = run(job)
    if status == 0 and link:
        return post(link, record)
    return 8 * status + 1


@compiled("void()")
def fence_now() -> None:
    """Let nothing after it begin before all before it is seen by everybody."""
    fence()


@compiled("int64(int64,int64)")
def marked(inner: int, epoch: int) -> int:
    """Return whether a producer says that it writes to memory of an epoch."""
    for i in range(NUM_MARKS):
        if load_acquire(inner + MARKS + 8 * i) == epoch:
            return 1
    return 0
