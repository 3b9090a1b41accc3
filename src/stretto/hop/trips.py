"""The loops of `measure`, compiled."""

from __future__ import annotations

import time
from collections.abc import Callable

from numba import types

from stretto.jit.atomics import call, clock_gettime, compiled, load, load_acquire, store

__all__ = ["by_hop", "by_socket"]

_NO_WAIT = 0x40
_MONOTONIC = int(getattr(time, "CLOCK_MONOTONIC", 0))
_send: Callable[[int, int, int, int], int] = types.ExternalFunction(
    "send", types.int64(types.int32, types.int64, types.int64, types.int32)
)
_recv: Callable[[int, int, int, int], int] = types.ExternalFunction(
    "recv", types.int64(types.int32, types.int64, types.int64, types.int32)
)


@compiled("int64(int64)")
def _now(words: int) -> int:
    clock_gettime(_MONOTONIC, words)
    return load(words) * 1_000_000_000 + load(words + 8)


@compiled("int64(int64)")
def _now_into(words: int) -> int:
    """Return the time; the word at the address is used for it, and the next kept."""
    after = load(words + 8)
    now = _now(words)
    store(words + 8, after)
    return now


@compiled("int64(int64,int64,int64,int64,int64)")
def by_hop(arguments: int, memory: int, begins: int, times: int, rounds: int) -> int:
    """Time round trips through a hop; the words of its calls follow its arguments."""
    context, put, signal = (
        load(arguments + 128),
        load(arguments + 136),
        load(arguments + 144),
    )
    progress, clock = load(arguments + 152), arguments + 184
    told = arguments + 64
    for nth in range(rounds):
        begun = _now(clock)
        if not begins:
            while load_acquire(memory) <= nth:
                call(progress, context, 0)
        elif load(arguments + 32):
            while not call(put, context, arguments):
                call(progress, context, 0)
        store(told + 24, nth + 1)
        while not call(signal, context, told):
            call(progress, context, 0)
        if begins:
            while load_acquire(memory) <= nth:
                call(progress, context, 0)
        store(times + 8 * nth, _now(clock) - begun)
    return rounds


@compiled("int64(int64,int64,int64,int64,int64,int64)")
def by_socket(
    sock: int, memory: int, nbytes: int, begins: int, times: int, rounds: int
) -> int:
    """Time round trips on a bare socket that is not blocking."""
    for nth in range(rounds):
        clock = times + 8 * nth
        at, stop = 0, nbytes if begins else 1
        begun = 0
        if begins:
            begun = _now_into(clock)
        else:
            while at < nbytes:
                got = _recv(sock, memory + at, nbytes - at, _NO_WAIT)
                if got > 0:
                    at += got
            at = 0
        while at < stop:
            sent = _send(sock, memory + at, stop - at, _NO_WAIT)
            if sent > 0:
                at += sent
        if begins:
            while _recv(sock, memory, 1, _NO_WAIT) < 1:
                pass
            store(clock, _now_into(clock) - begun)
    return rounds
