"""Frames on non-blocking sockets, compiled to run without the interpreter's lock.

A put's frame and small data are copied into the buffer of its connection; large data
are sent from where they lie, the largest at once. A signal sends all that waits. What
comes is received into a buffer, but the rest of large data straight into place.

Nothing here waits, but `wait`. All calls are made by one thread at a time.
"""

from __future__ import annotations

import errno
import select
import socket
from collections.abc import Callable

from numba import types

from stretto.hop import MORE
from stretto.hop.tcp.taking import drain, fail, why
from stretto.hop.tcp.words import (
    BUFFER,
    ENTRIES,
    PUT,
    PUT_WORDS,
    SIGNAL,
    SIGNAL_WORDS,
    SMALL,
    Context,
    End,
    Link,
)
from stretto.jit.atomics import compiled, load, store

__all__ = ["busy", "progress", "put", "signal", "wait"]

_sendmsg: Callable[[int, int, int], int] = types.ExternalFunction(
    "sendmsg", types.int64(types.int32, types.int64, types.int32)
)
_send: Callable[[int, int, int, int], int] = types.ExternalFunction(
    "send", types.int64(types.int32, types.int64, types.int64, types.int32)
)
_poll: Callable[[int, int, int], int] = types.ExternalFunction(
    "poll", types.int32(types.int64, types.int64, types.int32)
)
_ppoll: Callable[[int, int, int, int], int] = types.ExternalFunction(
    "ppoll", types.int32(types.int64, types.int64, types.int64, types.int64)
)
_memcpy: Callable[[int, int, int], int] = types.ExternalFunction(
    "memcpy", types.int64(types.int64, types.int64, types.int64)
)

_NO_WAIT = int(getattr(socket, "MSG_DONTWAIT", 0x40))
_QUIET = _NO_WAIT | int(getattr(socket, "MSG_NOSIGNAL", 0))
_AGAIN, _INTERRUPTED = errno.EAGAIN, errno.EINTR
_POLLIN = int(getattr(select, "POLLIN", 1)) << 32
_POLLOUT = int(getattr(select, "POLLOUT", 4)) << 32
_MOST_PIECES = 64
_FEW = 2
"""Connections up to which each is asked, instead of asking which of them stir."""

_LANES, _LINKS = 8 * Context.LANES, 8 * Context.LINKS
_NUM_LINKS, _WAYS = 8 * Context.NUM_LINKS, 8 * Context.WAYS
_POLLED, _TIME = 8 * Context.POLLED, 8 * Context.TIME
_WAKE = 8 * Context.WAKE
_LINK_BYTES = 8 * Link.END
_SOCKET, _ENDED = 8 * Link.SOCKET, 8 * Link.ENDED
_PIECES, _FIRST, _LAST = 8 * Link.PIECES, 8 * Link.FIRST, 8 * Link.LAST
_OUT, _OUT_USED, _JOINS = 8 * Link.OUT, 8 * Link.OUT_USED, 8 * Link.JOINS
_MESSAGE = 8 * Link.MESSAGE
_SENT = 8 * Link.SENT
_FAILED = int(End.FAILED)
_PUT_BYTES, _SIGNAL_BYTES = 8 * PUT_WORDS, 8 * SIGNAL_WORDS


@compiled("int64(int64,int64,int64)")
def _sent(link: int, first: int, many: int) -> int:
    """Send from the first piece on; return how much, or less than 0.

    The system spends less on one piece when it need not read a list.
    """
    piece, message = load(link + _PIECES) + 16 * first, link + _MESSAGE
    if many == 1:
        return _send(load(link + _SOCKET), load(piece), load(piece + 8), _QUIET)
    store(message + 16, piece)
    store(message + 24, min(many, _MOST_PIECES))
    return _sendmsg(load(link + _SOCKET), message, _QUIET)


@compiled("int64(int64)")
def _flush(link: int) -> int:
    """Send what waits, as much as the system takes; return how much it took."""
    taken = 0
    while load(link + _FIRST) < load(link + _LAST):
        first = load(link + _FIRST)
        sent = _sent(link, first, load(link + _LAST) - first)
        if sent < 0:
            error = why()
            if error == _INTERRUPTED:
                continue
            if error != _AGAIN:
                fail(link, _FAILED, error)
            return taken
        taken += sent
        while sent > 0:
            piece = load(link + _PIECES) + 16 * first
            nbytes = load(piece + 8)
            if sent < nbytes:
                store(piece, load(piece) + sent)
                store(piece + 8, nbytes - sent)
                break
            sent -= nbytes
            first += 1
        store(link + _FIRST, first)
    store(link + _FIRST, 0)
    store(link + _LAST, 0)
    store(link + _OUT_USED, 0)
    store(link + _JOINS, 0)
    return taken


@compiled("int64(int64,int64)")
def _has_room(link: int, nbytes: int) -> int:
    """Return whether a frame, with so many bytes of buffer in all, can be added."""
    fits = load(link + _OUT_USED) + nbytes <= BUFFER
    return 1 if fits and load(link + _LAST) + 2 <= ENTRIES else 0


@compiled("int64(int64,int64)")
def _grow(link: int, nbytes: int) -> int:
    """Add bytes of the buffer to what is to be sent; return where they lie."""
    at = load(link + _OUT) + load(link + _OUT_USED)
    store(link + _OUT_USED, load(link + _OUT_USED) + nbytes)
    last = load(link + _LAST)
    if load(link + _JOINS):
        piece = load(link + _PIECES) + 16 * (last - 1)
        store(piece + 8, load(piece + 8) + nbytes)
    else:
        piece = load(link + _PIECES) + 16 * last
        store(piece, at)
        store(piece + 8, nbytes)
        store(link + _LAST, last + 1)
        store(link + _JOINS, 1)
    return at


@compiled("int64(int64,int64)")
def _way(context: int, arguments: int) -> int:
    """Return the connection that a peer's lane goes by, or 0."""
    lanes = load(context + _LANES)
    nth = load(arguments) * lanes + (load(arguments + 8) & 0xFFFFFFFF) % lanes
    return load(load(context + _WAYS) + 8 * nth)


@compiled("int64(int64,int64)")
def put(context: int, arguments: int) -> int:
    """Begin a put; return 0 when there is no room for it yet."""
    link = _way(context, arguments)
    source, nbytes = load(arguments + 16), load(arguments + 32)
    if link == 0 or load(link + _ENDED):
        return 0
    beside = nbytes if nbytes <= SMALL else 0
    if not _has_room(link, _PUT_BYTES + beside):
        _flush(link)
        if load(link + _ENDED) or not _has_room(link, _PUT_BYTES + beside):
            return 0
    at = _grow(link, _PUT_BYTES + beside)
    store(at, PUT)
    store(at + 8, load(arguments + 24))
    store(at + 16, nbytes)
    if nbytes <= SMALL:
        _memcpy(at + _PUT_BYTES, source, nbytes)
        return 1
    last = load(link + _LAST)
    piece = load(link + _PIECES) + 16 * last
    store(piece, source)
    store(piece + 8, nbytes)
    store(link + _LAST, last + 1)
    store(link + _JOINS, 0)
    if not load(arguments + 8) & MORE:
        store(link + _SENT, load(link + _SENT) + _flush(link))
    return 1


@compiled("int64(int64,int64)")
def signal(context: int, arguments: int) -> int:
    """Raise a peer's word, and send all that waits; 0 when there is no room yet."""
    link = _way(context, arguments)
    if link == 0 or load(link + _ENDED):
        return 0
    if not _has_room(link, _SIGNAL_BYTES):
        _flush(link)
        if load(link + _ENDED) or not _has_room(link, _SIGNAL_BYTES):
            return 0
    at = _grow(link, _SIGNAL_BYTES)
    store(at, SIGNAL)
    for i in range(1, SIGNAL_WORDS):
        store(at + 8 * i, load(arguments + 8 + 8 * i))
    if load(arguments + 8) & MORE:
        return 1
    store(link + _SENT, load(link + _SENT) + _flush(link))
    return 1


@compiled("void(int64)")
def _say_what_to_poll(context: int) -> None:
    """Write for each connection what `poll` shall look for."""
    link, polled = load(context + _LINKS), load(context + _POLLED)
    for i in range(load(context + _NUM_LINKS)):
        word = load(link + _SOCKET) | _POLLIN
        if load(link + _FIRST) < load(link + _LAST):
            word |= _POLLOUT
        if load(link + _ENDED):
            word = 0xFFFFFFFF  # a socket below 0 is passed over
        store(polled + 8 * i, word)
        link += _LINK_BYTES


@compiled("int64(int64,int64)")
def progress(context: int, arguments: int) -> int:
    """Send and receive what can be; return how many bytes that was."""
    many = load(context + _NUM_LINKS)
    polled = load(context + _POLLED)
    if many > _FEW:
        _say_what_to_poll(context)
        if _poll(polled, many, 0) <= 0:
            return 0
    link, moved = load(context + _LINKS), 0
    for i in range(many):
        stirs = many <= _FEW or load(polled + 8 * i) >> 48
        if stirs and not load(link + _ENDED):
            if load(link + _FIRST) < load(link + _LAST):
                sent = _flush(link)
                store(link + _SENT, load(link + _SENT) + sent)
                moved += sent
            moved += drain(context, link)
        link += _LINK_BYTES
    return moved


@compiled("int64(int64,int64)")
def wait(context: int, microseconds: int) -> int:
    """Sleep until a connection stirs, at most so long; return whether one did."""
    _say_what_to_poll(context)
    store(context + _TIME, microseconds // 1_000_000)
    store(context + _TIME + 8, microseconds % 1_000_000 * 1000)
    polled, many = load(context + _POLLED), load(context + _NUM_LINKS)
    if load(context + _WAKE) >= 0:
        store(polled + 8 * many, load(context + _WAKE) | _POLLIN)
        many += 1
    return 1 if _ppoll(polled, many, context + _TIME, 0) > 0 else 0


@compiled("int64(int64,int64)")
def busy(context: int, way: int) -> int:
    """Return whether something waits to be sent; by one way only, if it is not 0."""
    link, many = load(context + _LINKS), load(context + _NUM_LINKS)
    if way:
        link, many = load(load(context + _WAYS) + 8 * (way - 1)), 1
    for _ in range(many if link else 0):
        if load(link + _FIRST) < load(link + _LAST):
            return 1
        link += _LINK_BYTES
    return 0
