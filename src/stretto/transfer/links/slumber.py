"""How an engine's thread sleeps, compiled: it serves far peers without the interpreter.

So a put is acknowledged, and a get is sent, while the process computes in Python.

And how who waits sleeps in its place (`recline`): what he waits for wakes him at once,
where the engine's thread would be woken to wake him. One thread at a time does so; the
engine's leaves links alone meanwhile.

To be woken takes a system several times as long as what one is woken for. So where what
came before came soon, a few times in a row, one stays awake for the next (`_stirred`).
"""

from __future__ import annotations

from stretto.fabric.channel.rings import far_spin, far_spun, progress
from stretto.fabric.channel.words import Attention, ChannelWord, Word
from stretto.fabric.jit.atomics import call, compiled, fence, load, pause, store
from stretto.fabric.jit.libc import (
    POLLIN,
    POLLOUT,
    now_ns,
    poll_for,
    read,
    sched_yield,
)
from stretto.transfer.links.direct import push
from stretto.transfer.links.quick import take_one
from stretto.transfer.links.words import Block, Look, Nap

__all__ = ["STRANGER_NS", "call_me", "recline", "slumber"]

_SERVED = 3
_LOOKS = 16
"""Looks between looks at the clock."""
_SOON_NS, _TIMES = 2_000_000, 3
"""What comes within that, so many times in a row, is waited for awake."""
_UNPAID = -16
"""After it did not come, or somebody else wanted the core: it has to come soon so many
times more until it is waited for awake again."""
STRANGER_NS = 500_000
"""A yield that took longer let somebody run who does not wait for us: who sleeps is put
before him, and who yields behind."""


@compiled("void(int64)")
def _say_what_to_poll(nap: int) -> None:
    polled, owners = load(nap + Nap.POLLED.at), load(nap + Nap.OWNERS.at)
    for i in range(1, load(nap + Nap.COUNT.at)):
        link = load(owners + 8 * i)
        word = load(polled + 8 * i) & 0xFFFFFFFF | POLLIN
        waits = load(link + Block.FIRST_SEND.at) < load(link + Block.LAST_SEND.at)
        if waits or call(
            load(link + ChannelWord.BUSY.at), load(link + ChannelWord.CONTEXT.at), 0
        ):
            word |= POLLOUT
        store(polled + 8 * i, word)
    store(polled, load(polled) & 0xFFFFFFFF | POLLIN)


@compiled("int64(int64,int64)")
def _served(nap: int, only_stirred: int) -> int:
    """Serve far peers; 0: nothing moved, 1: something did, 2: there is more to do."""
    polled, owners, moved = load(nap + Nap.POLLED.at), load(nap + Nap.OWNERS.at), 0
    for i in range(1, load(nap + Nap.COUNT.at)):
        if only_stirred and load(polled + 8 * i) >> 48 == 0:
            continue
        link = load(owners + 8 * i)
        if progress(link) + push(link):
            moved = 1
        found = take_one(link, 0, 0)
        while found == _SERVED:
            moved = 1
            found = take_one(link, 0, 0)
        if found:
            return 2
    return moved


@compiled("int64(int64,int64)")
def _awake(nap: int, ns: int) -> int:
    """Look what stirs for a while, where that is likely to pay; 0: nothing does."""
    attention, clock = load(nap + Nap.ATTENTION.at), nap + Nap.TIME.at
    polled, count = load(nap + Nap.POLLED.at), load(nap + Nap.COUNT.at)
    if load(attention + Attention.SOON.at) < _TIMES:
        return 0
    begun = now_ns(clock)
    while True:
        found = poll_for(polled, count, clock, 0)
        if found:
            return found
        now = now_ns(clock)
        if now - begun > min(ns, _SOON_NS):
            break
        sched_yield()
        if now_ns(clock) - now > STRANGER_NS:
            break
    store(attention + Attention.SOON.at, _UNPAID)
    return 0


@compiled("int64(int64,int64)")
def _stirred(nap: int, ns: int) -> int:
    """Wait until something stirs, at most so long; return whether it does."""
    attention, clock = load(nap + Nap.ATTENTION.at), nap + Nap.TIME.at
    soon, begun = attention + Attention.SOON.at, now_ns(clock)
    _say_what_to_poll(nap)
    found = _awake(nap, ns)
    if found == 0:
        left = max(0, ns - now_ns(clock) + begun)
        found = poll_for(
            load(nap + Nap.POLLED.at), load(nap + Nap.COUNT.at), clock, left
        )
    if now_ns(clock) - begun > _SOON_NS:
        store(soon, min(0, load(soon)))
    elif found:
        store(soon, min(load(soon) + 1, _TIMES))
    return found


@compiled("int64(int64,int64)")
def slumber(nap: int, microseconds: int) -> int:
    """Sleep until something stirs that is not served here; return whether that is so.

    `nap` is the address of the words of `Nap`. After it has served it looks for a
    while: more is likely to come.
    """
    attention, time = load(nap + Nap.ATTENTION.at), nap + Nap.TIME.at
    until = now_ns(time) + 1000 * microseconds
    while True:
        if not _stirred(nap, max(0, until - now_ns(time))):
            return 0
        if load(load(nap + Nap.POLLED.at)) >> 48:
            return 1
        said, looks, begun = _served(nap, 1), 0, 0
        spin = far_spin(attention)
        if said != 1:
            return 1  # of other records, or of an end, the interpreter knows more
        while load(attention + Attention.IS_HOT.at) == 0:
            said = _served(nap, 0)
            if said == 2:
                return 1
            looks += 1
            if said:
                begun = 0
                far_spun(attention, 1)
            elif looks % _LOOKS == 0:
                now = now_ns(time)
                if begun == 0:
                    begun = now
                elif now - begun > spin:
                    far_spun(attention, 0)
                    break
            pause()


@compiled("void(int64,int64)")
def call_me(look: int, asleep: int) -> None:
    """Say to the peers of this host whether they have to ring; of all links."""
    for i in range(load(look + Look.COUNT.at)):
        link = load(look + Look.LINKS.at + 8 * i)
        store(load(link + ChannelWord.IN.at) + Word.ASLEEP, asleep)
    fence()


@compiled("void(int64,int64)")
def recline(nap: int, ns: int) -> None:
    """Sleep until a peer rings, or a socket stirs, at most so long."""
    _stirred(nap, ns)
    bell = load(load(nap + Nap.POLLED.at))
    if bell >> 48:
        read(bell & 0xFFFFFFFF, nap + Nap.TIME.at, 8)
