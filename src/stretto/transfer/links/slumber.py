"""How an engine's thread sleeps, compiled: it serves far peers without the interpreter.

So a put is acknowledged, and a get is sent, while the process computes in Python.
"""

from __future__ import annotations

import select
from collections.abc import Callable

from numba import types

from stretto.jit.atomics import call, compiled, load, pause, store
from stretto.transfer.links.direct import push
from stretto.transfer.links.quick import take_one
from stretto.transfer.links.rings import give_way, progress, time_ns
from stretto.transfer.links.words import Attention, Block, Nap

__all__ = ["slumber"]

_ppoll: Callable[[int, int, int, int], int] = types.ExternalFunction(
    "ppoll", types.int32(types.int64, types.int64, types.int64, types.int64)
)
_POLLIN = int(getattr(select, "POLLIN", 1)) << 32
_POLLOUT = int(getattr(select, "POLLOUT", 4)) << 32
_CONTEXT, _BUSY = 8 * Block.CONTEXT, 8 * Block.BUSY
_FIRST_SEND, _LAST_SEND = 8 * Block.FIRST_SEND, 8 * Block.LAST_SEND
_ATTENTION, _TIME, _COUNT = 8 * Nap.ATTENTION, 8 * Nap.TIME, 8 * Nap.COUNT
_OWNERS, _POLLED = 8 * Nap.OWNERS, 8 * Nap.POLLED
_IS_HOT, _SPIN_NS = 8 * Attention.IS_HOT, 8 * Attention.SPIN_NS
_SERVED = 3
_LOOKS = 16
"""Looks between looks at the clock."""


@compiled("void(int64)")
def _say_what_to_poll(nap: int) -> None:
    polled, owners = load(nap + _POLLED), load(nap + _OWNERS)
    for i in range(1, load(nap + _COUNT)):
        link = load(owners + 8 * i)
        word = load(polled + 8 * i) & 0xFFFFFFFF | _POLLIN
        waits = load(link + _FIRST_SEND) < load(link + _LAST_SEND)
        if waits or call(load(link + _BUSY), load(link + _CONTEXT), 0):
            word |= _POLLOUT
        store(polled + 8 * i, word)
    store(polled, load(polled) & 0xFFFFFFFF | _POLLIN)


@compiled("int64(int64,int64)")
def _served(nap: int, only_stirred: int) -> int:
    """Serve far peers; 0: nothing moved, 1: something did, 2: there is more to do."""
    polled, owners, moved = load(nap + _POLLED), load(nap + _OWNERS), 0
    for i in range(1, load(nap + _COUNT)):
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
    attention, time = load(nap + _ATTENTION), nap + _TIME
    until = time_ns(time) + 1000 * microseconds
    while True:
        _say_what_to_poll(nap)
        left = max(0, until - time_ns(time))
        store(time, left // 1_000_000_000)
        store(time + 8, left % 1_000_000_000)
        if _ppoll(load(nap + _POLLED), load(nap + _COUNT), time, 0) <= 0:
            return 0
        if load(load(nap + _POLLED)) >> 48:
            return 1
        said, looks, begun = _served(nap, 1), 0, 0
        if said != 1:
            return 1  # of other records, or of an end, the interpreter knows more
        while load(attention + _IS_HOT) == 0:
            said = _served(nap, 0)
            if said == 2:
                return 1
            looks += 1
            if said:
                begun = 0
            elif looks % _LOOKS == 0:
                now = time_ns(time)
                if begun == 0:
                    begun = now
                elif give_way(attention, time, begun, now) - begun > load(
                    attention + _SPIN_NS
                ):
                    break
            pause()
