"""What comes on a connection, compiled: frames in a buffer, and large data in place."""

from __future__ import annotations

import errno
import socket
from collections.abc import Callable

from numba import types

from stretto.hop.fields import FIELDS
from stretto.hop.tcp.landing import aim, aimed, drop, land, landed
from stretto.hop.tcp.words import (
    AFTER_LARGE,
    BUFFER,
    PUT,
    PUT_WORDS,
    SIGNAL,
    SIGNAL_WORDS,
    SMALL,
    Context,
    End,
    Link,
)
from stretto.jit.atomics import compiled, load, store, store_release

__all__ = ["drain", "fail", "why"]

_recvmsg: Callable[[int, int, int], int] = types.ExternalFunction(
    "recvmsg", types.int64(types.int32, types.int64, types.int32)
)
_recv: Callable[[int, int, int, int], int] = types.ExternalFunction(
    "recv", types.int64(types.int32, types.int64, types.int64, types.int32)
)
_memcpy: Callable[[int, int, int], int] = types.ExternalFunction(
    "memcpy", types.int64(types.int64, types.int64, types.int64)
)
_errno_at: Callable[[], int] = types.ExternalFunction("__errno_location", types.int64())

_NO_WAIT = int(getattr(socket, "MSG_DONTWAIT", 0x40))
_AGAIN, _INTERRUPTED = errno.EAGAIN, errno.EINTR
_ROUNDS = 16
"""Receives of one connection before others have their turn."""

_BASE = 8 * Context.BASE
_PUT_FROM, _PUT_TO = 8 * Context.PUT_FROM, 8 * Context.PUT_TO
_WORD_FROM, _WORD_TO = 8 * Context.WORD_FROM, 8 * Context.WORD_TO
_SOCKET, _ENDED, _ERROR = 8 * Link.SOCKET, 8 * Link.ENDED, 8 * Link.ERROR
_FIRST, _LAST = 8 * Link.FIRST, 8 * Link.LAST
_MESSAGE, _VECTOR = 8 * Link.MESSAGE, 8 * Link.VECTOR
_IN, _IN_FROM, _IN_TO = 8 * Link.IN, 8 * Link.IN_FROM, 8 * Link.IN_TO
_TARGET, _LEFT = 8 * Link.TARGET, 8 * Link.LEFT
_FIELD, _ROOM, _ASKED = 8 * Link.FIELD, 8 * Link.ROOM, 8 * Link.ASKED
_RECEIVED = 8 * Link.RECEIVED
_CLOSED, _FAILED, _NONSENSE = int(End.CLOSED), int(End.FAILED), int(End.NONSENSE)
_PUT_BYTES, _SIGNAL_BYTES = 8 * PUT_WORDS, 8 * SIGNAL_WORDS


@compiled("int64()")
def why() -> int:
    """Return the system's number of what just went wrong."""
    return load(_errno_at()) & 0xFFFFFFFF


@compiled("void(int64,int64,int64)")
def fail(link: int, how: int, error: int) -> None:
    """End a connection: nothing is sent by it any more."""
    store(link + _ERROR, error)
    store(link + _ENDED, how)
    store(link + _FIRST, 0)
    store(link + _LAST, 0)


@compiled("int64(int64,int64)")
def _is_word(context: int, offset: int) -> int:
    inside = load(context + _WORD_FROM) <= offset < load(context + _WORD_TO)
    return 1 if inside and offset % 8 == 0 else 0


@compiled("int64(int64,int64,int64)")
def _raise(context: int, base: int, at: int) -> int:
    """Do what a signal says; return whether it may."""
    offset, side = load(at + 8), load(at + 24)
    if not (_is_word(context, offset) and _is_word(context, side)):
        return 0
    if not _is_word(context, side + 16):
        return 0
    for i in range(3):
        store(base + side + 8 * i, load(at + 32 + 8 * i))
    if load(base + offset) < load(at + 16):
        store_release(base + offset, load(at + 16))
    return 1


@compiled("int64(int64,int64)")
def _take(context: int, link: int) -> int:
    """Deal with the frames in the buffer; return whether all of it made sense."""
    base = load(context + _BASE)
    while True:
        at = load(link + _IN) + load(link + _IN_FROM)
        here = load(link + _IN_TO) - load(link + _IN_FROM)
        left = load(link + _LEFT)
        if left > 0:
            nbytes = min(left, here)
            if load(link + _FIELD):
                land(link, at, nbytes)
            else:
                _memcpy(load(link + _TARGET), at, nbytes)
                store(link + _TARGET, load(link + _TARGET) + nbytes)
                store(link + _LEFT, left - nbytes)
            store(link + _IN_FROM, load(link + _IN_FROM) + nbytes)
            if nbytes == here:
                return 1
            continue
        if here < 8:
            return 1
        if load(at) == PUT:
            if here < _PUT_BYTES:
                return 1
            offset, nbytes = load(at + 8), load(at + 16)
            if offset >= FIELDS:
                if not aim(context, link, offset, nbytes):
                    return 0
            else:
                room = load(context + _PUT_TO) - offset
                if offset < load(context + _PUT_FROM) or nbytes < 0 or nbytes > room:
                    return 0
                store(link + _FIELD, 0)
                store(link + _TARGET, base + offset)
                store(link + _LEFT, nbytes)
            if nbytes > SMALL:
                store(link + _ROOM, AFTER_LARGE)
            store(link + _IN_FROM, load(link + _IN_FROM) + _PUT_BYTES)
        elif load(at) == SIGNAL:
            if here < _SIGNAL_BYTES:
                return 1
            if not _raise(context, base, at):
                return 0
            store(link + _IN_FROM, load(link + _IN_FROM) + _SIGNAL_BYTES)
        else:
            return 0


@compiled("int64(int64,int64,int64)")
def _receive_rest(link: int, left: int, room: int) -> int:
    """Receive the rest of a put's data into place, and what follows into the buffer."""
    vector, message, many = link + _VECTOR, link + _MESSAGE, 2
    if load(link + _FIELD):
        many = aimed(link, room)
        if many == 0:
            return drop(link)
    else:
        store(vector, load(link + _TARGET))
        store(vector + 8, left)
        store(vector + 16, load(link + _IN))
        store(vector + 24, room)
        store(link + _ASKED, left + room)
    store(message + 16, vector)
    store(message + 24, many)
    got = _recvmsg(load(link + _SOCKET), message, _NO_WAIT)
    if load(link + _FIELD):
        store(link + _IN_TO, landed(link, got))
    elif got > 0:
        placed = min(got, left)
        store(link + _TARGET, load(link + _TARGET) + placed)
        store(link + _LEFT, left - placed)
        store(link + _IN_TO, got - placed)
    return got


@compiled("int64(int64)")
def _receive(link: int) -> int:
    """Receive once, into place and into the buffer; return how much, or less than 0."""
    left, start = load(link + _LEFT), load(link + _IN_FROM)
    here = load(link + _IN_TO) - start
    if start > 0:  # less than a frame, if anything
        for i in range(here):
            _memcpy(load(link + _IN) + i, load(link + _IN) + start + i, 1)
        store(link + _IN_FROM, 0)
        store(link + _IN_TO, here)
    room = load(link + _ROOM)
    if left == 0:
        asked = min(room, BUFFER - here)
        store(link + _ASKED, asked)
        got = _recv(load(link + _SOCKET), load(link + _IN) + here, asked, _NO_WAIT)
        if got > 0:
            store(link + _IN_TO, here + got)
        if got == asked:
            store(link + _ROOM, min(2 * room, BUFFER))
        return got
    return _receive_rest(link, left, room)


@compiled("int64(int64,int64)")
def drain(context: int, link: int) -> int:
    """Take what has come on a connection; return how many bytes."""
    taken = 0
    for _ in range(_ROUNDS):
        got = _receive(link)
        if got < 0:
            error = why()
            if error == _INTERRUPTED:
                continue
            if error != _AGAIN:
                fail(link, _FAILED, error)
            break
        if got == 0:
            fail(link, _CLOSED, 0)
            break
        taken += got
        if not _take(context, link):
            fail(link, _NONSENSE, 0)
            break
        if got < load(link + _ASKED):
            break
    store(link + _RECEIVED, load(link + _RECEIVED) + taken)
    return taken
