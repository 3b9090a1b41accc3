"""How an engine's thread sleeps, compiled: it serves far peers without the interpreter.

So a put is acknowledged, and a get is sent, while the process computes in Python.
"""

from __future__ import annotations

from stretto.fabric.channel.rings import give_way, progress
from stretto.fabric.channel.words import Attention, ChannelWord
from stretto.fabric.jit.atomics import call, compiled, load, pause, store
from stretto.fabric.jit.libc import POLLIN, POLLOUT, now_ns, poll_for
from stretto.transfer.links.direct import push
from stretto.transfer.links.quick import take_one
from stretto.transfer.links.words import Block, Nap

__all__ = ["slumber"]

_SERVED = 3
_LOOKS = 16
"""Looks between looks at the clock."""


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
def slumber(nap: int, microseconds: int) -> int:
    """Sleep until something stirs that is not served here; return whether that is so.

    `nap` is the address of the words of `Nap`. After it has served it looks for a
    while: more is likely to come.
    """
    attention, time = load(nap + Nap.ATTENTION.at), nap + Nap.TIME.at
    until = now_ns(time) + 1000 * microseconds
    while True:
        _say_what_to_poll(nap)
        left = max(0, until - now_ns(time))
        if not poll_for(
            load(nap + Nap.POLLED.at), load(nap + Nap.COUNT.at), time, left
        ):
            return 0
        if load(load(nap + Nap.POLLED.at)) >> 48:
            return 1
        said, looks, begun = _served(nap, 1), 0, 0
        if said != 1:
            return 1  # of other records, or of an end, the interpreter knows more
        while load(attention + Attention.IS_HOT.at) == 0:
            said = _served(nap, 0)
            if said == 2:
                return 1
            looks += 1
            if said:
                begun = 0
            elif looks % _LOOKS == 0:
                now = now_ns(time)
                if begun == 0:
                    begun = now
                elif give_way(attention, time, begun, now) - begun > load(
                    attention + Attention.SPIN_NS.at
                ):
                    break
            pause()
