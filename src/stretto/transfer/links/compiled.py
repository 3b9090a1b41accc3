"""Everything of links that is compiled: what waits and what repeats is here.

Waiting takes the notification that it waits for, serves what a peer has kept ready, and
leaves everything else to whoever drains the link.
"""

from __future__ import annotations

from stretto.fabric.channel.rings import (
    far_put,
    far_signal,
    far_spin,
    far_spun,
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
    store_release,
    take,
)
from stretto.fabric.jit.libc import now_ns
from stretto.fabric.jit.locks import enter, leave
from stretto.transfer.copying.compiled import run
from stretto.transfer.copying.mixing import mixed_runs
from stretto.transfer.copying.words import Job
from stretto.transfer.links.direct import pop, push, send
from stretto.transfer.links.quick import (
    answered,
    await_done,
    quick,
    take_one,
)
from stretto.transfer.links.serving import serve
from stretto.transfer.links.slumber import STRANGER_NS, call_me, recline, slumber
from stretto.transfer.links.words import NUM_MARKS, Look, Nap, Said

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
    "glance_far",
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
_OTHER, _SERVED, _AWAKE = 2, 3, 4


@compiled("int64(int64,int64)")
def _look_at_all(look: int, tag: int) -> int:
    """Look at all links once; 0: nothing, 3: something moved; see `await_record`."""
    moved = 0
    for i in range(load(look + Look.COUNT.at)):
        link = load(look + Look.LINKS.at + 8 * i)
        found = take_one(link, tag, 0)
        if found == _SERVED:  # there may be more at once
            moved = _SERVED
        elif found:
            return found
        if load(link + ChannelWord.CONTEXT.at):
            if progress(link) + push(link):
                moved = _SERVED
            else:
                rest()
    return moved


@compiled("int64(int64,int64,int64,int64)")
def _look_long(look: int, tag: int, rest_ns: int, taken: int) -> int:
    """Look at links until something comes, and sleep meanwhile; see `await_record`."""
    attention = load(look + Look.ATTENTION.at)
    nap = load(look + Look.REST.at)
    clock, spin = nap + Nap.TIME.at, load(attention + Attention.FAR_SPIN_NS.at)
    until = now_ns(clock) + rest_ns
    while True:
        # A peer announces, and then looks whether we sleep. Between the two each has a
        # full fence: one of them sees.
        call_me(look, 1)
        found = _look_at_all(look, tag)
        if found == 0 and load_acquire(attention + Attention.TAKEN.at) == taken:
            left = until - now_ns(clock)
            if left <= 0:
                found = _AWAKE
            else:
                recline(nap, left)
        call_me(look, 0)
        if load_acquire(attention + Attention.IS_HOT.at) == 0:
            call_me(look, 1)  # else nobody would hear who comes when we have left
            found = found or Said.COLD
        store(attention + Attention.LOOKS.at, load(attention + Attention.LOOKS.at) + 1)
        begun = now_ns(clock)
        while found == 0 or found == _SERVED:  # more is likely to come soon
            if load_acquire(attention + Attention.TAKEN.at) != taken:
                return _OTHER
            found = _look_at_all(look, tag)
            now = now_ns(clock)
            if found == _SERVED:
                begun = now
            elif now - begun > spin:
                break
            pause()
        if found:
            return 0 if found == _AWAKE else found


@compiled("int64(int64,int64,int64,int64)")
def await_record(look: int, tag: int, taken: int, rest_ns: int) -> int:
    """Look at links for a while; 1: that notification came once, 2: another record.

    It is taken if it is the one; whatever else there is, is left. 0: nothing came. 2
    also says that somebody else has taken records since TAKEN was `taken`: it may be
    among them. `look` is the address of the words of `Look`. Who has looked in vain
    sleeps for as long as `rest_ns`, unless another thread does.
    """
    begun, left, clock, rests, spin = 0, _LOOKS, look + Look.CLOCK.at, 0, 0
    attention, far = load(look + Look.ATTENTION.at), load(look + Look.FAR.at)
    if load(attention + Attention.IS_HOT.at) == 0:
        return Said.COLD
    store(attention + Attention.LOOKS.at, load(attention + Attention.LOOKS.at) + 1)
    if far:
        spin = far_spin(attention)
    while True:
        found = _look_at_all(look, tag)
        if found == _SERVED:
            begun = 0
        elif found:
            far_spun(attention, 1)
            return found
        left -= 1 + far
        if left <= 0:
            left = _LOOKS
            if load(attention + Attention.IS_HOT.at) == 0:
                return Said.COLD
            if load_acquire(attention + Attention.TAKEN.at) != taken:
                return _OTHER
            store(
                attention + Attention.LOOKS.at, load(attention + Attention.LOOKS.at) + 1
            )
            now, most = now_ns(clock), load(look)
            rests = load(look + Look.REST.at) if rest_ns > 0 else 0
            if begun == 0:
                begun = now
            after = now
            if rests and far:
                most = min(most, spin)
            else:
                after = give_way(attention, clock, begun, now)
            if after - begun >= most or (rests and after - now > STRANGER_NS):
                break
        pause()
    far_spun(attention, 0)
    if rests == 0 or not take(attention + Attention.RESTING.at, 1):
        return 0
    found = _look_long(look, tag, rest_ns, taken)
    store_release(attention + Attention.RESTING.at, 0)
    return found


@compiled("int64(int64,int64)")
def glance_far(look: int, tag: int) -> int:
    """Look for a notification for a short while; see `await_record`."""
    attention = load(look + Look.ATTENTION.at)
    return await_record(look, tag, load(attention + Attention.TAKEN.at), 0)


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

    The words: its job, how many runs, the link and the record, or 0, and a lock: of
    several threads each does all of it. Return 8 x its status, and what `post` says.
    """
    job, rows = load(words), load(words + 8)
    link, record = load(words + 16), load(words + 24)
    enter(words + 32)
    store(job + Job.ROW.at, 0)
    store(job + Job.MOVED.at, 0)
    store(job + Job.STOP.at, rows)
    status = run(job)
    leave(words + 32)
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
