"""Everything of links that is compiled: what waits and what repeats is here.

Waiting takes the notification that it waits for, serves what a peer has kept ready, and
leaves everything else to whoever drains the link.
"""

from __future__ import annotations

from stretto.fabric.channel.rings import (
    far_put,
    far_signal,
    far_wait,
    give_way,
    post,
    progress,
    rest,
)
from stretto.fabric.channel.words import Attention, ChannelWord
from stretto.fabric.jit.atomics import (
    compiled,
    direct,
    fence,
    load,
    load_acquire,
    pause,
    store,
)
from stretto.fabric.jit.libc import now_ns
from stretto.fabric.jit.locks import enter, leave
from stretto.transfer.copying.compiled import run
from stretto.transfer.copying.mixing import mixed_runs
from stretto.transfer.copying.words import Job
from stretto.transfer.links.direct import pop, push, send
from stretto.transfer.links.quick import answered, await_done, quick, take_one
from stretto.transfer.links.serving import serve
from stretto.transfer.links.slumber import slumber
from stretto.transfer.links.words import NUM_MARKS, Look, Said

__all__ = [
    "again",
    "announce",
    "announce_far",
    "answered",
    "await_done",
    "await_record",
    "direct",
    "enter",
    "far_put",
    "far_signal",
    "far_wait",
    "fence_now",
    "glance",
    "leave",
    "marked",
    "mixed_runs",
    "pop",
    "post",
    "progress",
    "push",
    "quick",
    "run",
    "send",
    "serve",
    "slumber",
]

_LOOKS = 8
"""Looks at all links between looks at the clock; a look at a socket counts twice."""
_GLANCES = 50


@compiled("int64(int64,int64)")
def await_record(look: int, tag: int) -> int:
    """Look at links for a while; 1: that notification came once, 2: another record.

    It is taken if it is the one; whatever else there is, is left. 0: nothing came.
    `look` is the address of the words of `Look`.
    """
    begun, left, clock = 0, _LOOKS, look + Look.CLOCK.at
    attention = load(look + Look.ATTENTION.at)
    if load(attention + Attention.IS_HOT.at) == 0:
        return Said.COLD
    store(attention + Attention.LOOKS.at, load(attention + Attention.LOOKS.at) + 1)
    count = load(look + Look.COUNT.at)
    while True:
        for i in range(count):
            link = load(look + Look.LINKS.at + 8 * i)
            found = take_one(link, tag, 0)
            if found == 3:  # it was served: there may be more at once
                begun, found = 0, 0
            if found:
                return found
            if load(link + ChannelWord.CONTEXT.at):
                left -= 1
                if progress(link) + push(link):
                    begun = 0
                else:
                    rest()
        left -= 1
        if left <= 0:
            left = _LOOKS
            if load(attention + Attention.IS_HOT.at) == 0:
                return Said.COLD
            store(
                attention + Attention.LOOKS.at, load(attention + Attention.LOOKS.at) + 1
            )
            now = now_ns(clock)
            if begun == 0:
                begun = now
            elif give_way(attention, clock, begun, now) - begun >= load(look):
                return 0
        pause()


@compiled("int64(int64,int64)", nogil=False)
def glance(look: int, tag: int) -> int:
    """Look for a notification for about two microseconds; return whether it came.

    For links of one host only. The interpreter lock is kept: giving it back, and taking
    it again, would take as long as the notification.
    """
    attention, count = load(look + Look.ATTENTION.at), load(look + Look.COUNT.at)
    if load(attention + Attention.IS_HOT.at) == 0:
        return 0
    store(attention + Attention.LOOKS.at, load(attention + Attention.LOOKS.at) + 1)
    for _ in range(_GLANCES):
        for i in range(count):
            found = take_one(load(look + Look.LINKS.at + 8 * i), tag, 0)
            if found:
                return 1 if found == 1 else 0
        pause()
    return 0


@compiled("int64(int64)", nogil=False)
def announce(note: int) -> int:
    """Post a record to a link of one host; see `post`. The interpreter lock is kept.

    A note is the address of a link's, and a record.
    """
    return post(load(note), note + 8)


@compiled("int64(int64)")
def announce_far(note: int) -> int:
    """Post a record to a link by a hop, which takes longer."""
    return post(load(note), note + 8)


@compiled("int64(int64)")
def again(words: int) -> int:
    """Do a prepared transfer, and post its notification, if it has one.

    The words: its job, how many runs, the link and the record, or 0. Return 8 x its
    status, and what `post` says.
    """
    job, rows = load(words), load(words + 8)
    link, record = load(words + 16), load(words + 24)
    store(job + Job.ROW.at, 0)
    store(job + Job.MOVED.at, 0)
    store(job + Job.STOP.at, rows)
    status = run(job)
    if status == 0 and link:
        return post(link, record)
    return 8 * status + 1


@compiled("void()")
def fence_now() -> None:
    """Let nothing after it begin before all before it is seen by everybody."""
    fence()


@compiled("int64(int64,int64)")
def marked(marks: int, epoch: int) -> int:
    """Return whether one of the marks says that memory of an epoch is written to."""
    for i in range(NUM_MARKS):
        if load_acquire(marks + 8 * i) == epoch:
            return 1
    return 0
