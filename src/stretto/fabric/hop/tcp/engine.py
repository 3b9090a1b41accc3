"""Frames on non-blocking sockets, compiled to run without the interpreter's lock.

A put's frame and small data are copied into the buffer of its connection; large data
are sent from where they lie, the largest at once. A signal sends all that waits. What
comes is received into a buffer, but the rest of large data straight into place.

Nothing here waits, but `wait`. All calls are made by one thread at a time.
"""

from __future__ import annotations

import errno
import socket

from stretto.fabric.hop.base import MORE, PutCall, SignalCall
from stretto.fabric.hop.tcp.paths import (
    NO_HEARING,
    arrived,
    call_at_room,
    fail,
    introduced,
    lost,
    stood_in,
    waits,
    why,
)
from stretto.fabric.hop.tcp.taking import change_rails, drain
from stretto.fabric.hop.tcp.words import (
    BUFFER,
    ENTRIES,
    HAD,
    PUT,
    PUT_WORDS,
    SIGNAL,
    SIGNAL_WORDS,
    SMALL,
    Context,
    End,
    Link,
    RailWord,
)
from stretto.fabric.jit.atomics import compiled, load, store
from stretto.fabric.jit.libc import (
    NO_WAIT,
    POLLIN,
    POLLOUT,
    memcpy,
    poll,
    poll_for,
    send,
    sendmsg,
)

_QUIET = NO_WAIT | int(getattr(socket, "MSG_NOSIGNAL", 0))
_AGAIN, _INTERRUPTED, _GONE = errno.EAGAIN, errno.EINTR, errno.EFAULT
_MOST_PIECES = 64
_FEW = 2
"""Connections up to which each is asked, instead of asking which of them stir."""
_SELDOM = 31
"""Less one, how often it is looked whether a peer goes on by another rail."""

_PUT_BYTES, _SIGNAL_BYTES = 8 * PUT_WORDS, 8 * SIGNAL_WORDS


@compiled("int64(int64,int64,int64)")
def _sent(link: int, first: int, many: int) -> int:
    """Send from the first piece on; return how much, or less than 0.

    The system spends less on one piece when it need not read a list.
    """
    piece, message = load(link + Link.PIECES.at) + 16 * first, link + Link.MESSAGE.at
    at, nbytes, done = load(piece), load(piece + 8), load(link + Link.DONE.at)
    if many == 1:
        return send(load(link + Link.SOCKET.at), at + done, nbytes - done, _QUIET)
    store(piece, at + done)
    store(piece + 8, nbytes - done)
    store(message + 16, piece)
    store(message + 24, min(many, _MOST_PIECES))
    sent = sendmsg(load(link + Link.SOCKET.at), message, _QUIET)
    store(piece, at)
    store(piece + 8, nbytes)
    return sent


@compiled("int64(int64)")
def _flush(link: int) -> int:
    """Send what waits, as much as the system takes; return how much it took."""
    taken, many = 0, load(link + Link.PATHS.at)
    if many and not introduced(link):
        return 0
    while load(link + Link.FIRST.at) < load(link + Link.LAST.at):
        first = load(link + Link.FIRST.at)
        sent = _sent(link, first, load(link + Link.LAST.at) - first)
        if sent < 0:
            error = why()
            # A signal came in between: nothing was sent, and nothing is wrong.
            if error == _INTERRUPTED:
                continue
            if error == _AGAIN:
                if many:
                    call_at_room(link, 1)
                return taken
            # Bytes before it may have arrived, so nothing can be sent again on this
            # connection: a stream has no half frames. On another one, all of it is.
            if many == 0:
                fail(link, End.FAILED, error)
                return taken
            sent = stood_in(link) if error == _GONE else 0
            if sent < 0:
                return taken
            if sent == 0:
                if lost(link, error) and introduced(link):
                    continue
                return taken
        taken += sent
        position = load(link + Link.POSITION.at) + sent
        store(link + Link.POSITION.at, position)
        store(link + Link.FURTHEST.at, max(position, load(link + Link.FURTHEST.at)))
        # The system may have taken a part. The next flush begins there.
        sent += load(link + Link.DONE.at)
        store(link + Link.DONE.at, 0)
        while sent > 0:
            nbytes = load(load(link + Link.PIECES.at) + 16 * first + 8)
            if sent < nbytes:
                store(link + Link.DONE.at, sent)
                break
            sent -= nbytes
            first += 1
        store(link + Link.FIRST.at, first)
    if many:  # all of it is kept until it has arrived
        call_at_room(link, 0)
        return taken
    # All is sent: the buffer begins anew, so that it never wraps around and a frame
    # always lies in one piece.
    store(link + Link.FIRST.at, 0)
    store(link + Link.LAST.at, 0)
    store(link + Link.OUT_USED.at, 0)
    store(link + Link.JOINS.at, 0)
    return taken


@compiled("int64(int64,int64)")
def _has_room(link: int, nbytes: int) -> int:
    """Return whether a frame, with so many bytes of buffer in all, can be added."""
    if load(link + Link.PATHS.at):
        arrived(link)
    fits = load(link + Link.OUT_USED.at) + nbytes <= BUFFER
    # Two entries: a frame, and large data that are sent from where they lie.
    return 1 if fits and load(link + Link.LAST.at) + 2 <= ENTRIES else 0


@compiled("int64(int64,int64)")
def _grow(link: int, nbytes: int) -> int:
    """Add bytes of the buffer to what is to be sent; return where they lie."""
    at = load(link + Link.OUT.at) + load(link + Link.OUT_USED.at)
    store(link + Link.OUT_USED.at, load(link + Link.OUT_USED.at) + nbytes)
    store(link + Link.TOTAL.at, load(link + Link.TOTAL.at) + nbytes)
    last = load(link + Link.LAST.at)
    # What follows in the buffer is one piece with what is there: one entry for the
    # system to read instead of many.
    if load(link + Link.JOINS.at):
        piece = load(link + Link.PIECES.at) + 16 * (last - 1)
        store(piece + 8, load(piece + 8) + nbytes)
    else:
        piece = load(link + Link.PIECES.at) + 16 * last
        store(piece, at)
        store(piece + 8, nbytes)
        store(link + Link.LAST.at, last + 1)
        store(link + Link.JOINS.at, 1)
    return at


@compiled("int64(int64,int64)")
def _way(context: int, arguments: int) -> int:
    """Return the connection that a peer's lane goes by, or 0."""
    lanes = load(context + Context.LANES.at)
    lane = load(arguments + PutCall.LANE.at) & 0xFFFFFFFF
    nth = load(arguments + PutCall.PEER.at) * lanes + lane % lanes
    return load(load(context + Context.WAYS.at) + 8 * nth)


@compiled("int64(int64,int64)")
def put(context: int, arguments: int) -> int:
    """Begin a put; return 0 when there is no room for it yet."""
    link = _way(context, arguments)
    source = load(arguments + PutCall.SOURCE.at)
    nbytes = load(arguments + PutCall.NBYTES.at)
    if link == 0 or load(link + Link.ENDED.at):
        return 0
    beside = nbytes if nbytes <= SMALL else 0
    if not _has_room(link, _PUT_BYTES + beside):
        _flush(link)
        # Never wait here: whoever puts holds locks, and the peer may wait for us. 0
        # says: try again.
        if load(link + Link.ENDED.at) or not _has_room(link, _PUT_BYTES + beside):
            return 0
    at = _grow(link, _PUT_BYTES + beside)
    store(at, PUT)
    store(at + 8, load(arguments + PutCall.OFFSET.at))
    store(at + 16, nbytes)
    # Copied, so that the caller may change it at once; a copy of so few bytes costs
    # less than to keep track of it.
    if nbytes <= SMALL:
        memcpy(at + _PUT_BYTES, source, nbytes)
        return 1
    last = load(link + Link.LAST.at)
    piece = load(link + Link.PIECES.at) + 16 * last
    store(piece, source)
    store(piece + 8, nbytes)
    store(link + Link.LAST.at, last + 1)
    store(link + Link.JOINS.at, 0)
    store(link + Link.TOTAL.at, load(link + Link.TOTAL.at) + nbytes)
    store(link + Link.LARGE.at, load(link + Link.TOTAL.at))
    # Large data leave at once, while the caller goes on; small ones wait for the signal
    # that follows, and share its call of the system.
    if not load(arguments + PutCall.LANE.at) & MORE:
        store(link + Link.SENT.at, load(link + Link.SENT.at) + _flush(link))
    return 1


@compiled("int64(int64,int64)")
def signal(context: int, arguments: int) -> int:
    """Raise a peer's word, and send all that waits; 0 when there is no room yet."""
    link = _way(context, arguments)
    if link == 0 or load(link + Link.ENDED.at):
        return 0
    if not _has_room(link, _SIGNAL_BYTES):
        _flush(link)
        if load(link + Link.ENDED.at) or not _has_room(link, _SIGNAL_BYTES):
            return 0
    at = _grow(link, _SIGNAL_BYTES)
    store(at, SIGNAL)
    for i in range(1, SIGNAL_WORDS):
        store(at + 8 * i, load(arguments + SignalCall.OFFSET.at + 8 * (i - 1)))
    if load(arguments + SignalCall.LANE.at) & MORE:
        return 1
    store(link + Link.SENT.at, load(link + Link.SENT.at) + _flush(link))
    return 1


@compiled("int64(int64,int64,int64)")
def _say_which_wait(link: int, polled: int, many: int) -> int:
    """Write those of a lane's connections by which it may go on; return how many."""
    path, current = load(link + Link.PATHS.at), load(link + Link.IN_NUMBER.at)
    for _ in range(load(link + Link.SLOTS.at)):
        hears = not load(path + RailWord.ENDED.at) & NO_HEARING
        number = load(path + RailWord.NUMBER.at)
        if hears and number > current:
            word = load(path + RailWord.SOCKET.at) & 0xFFFFFFFF | POLLIN
            waits_here = number == load(link + Link.NUMBER.at)
            if waits_here and load(link + Link.FIRST.at) < load(link + Link.LAST.at):
                word |= POLLOUT
            store(polled + 8 * many, word)
            many += 1
        path += RailWord.END.at
    return many


@compiled("int64(int64)")
def _say_what_to_poll(context: int) -> int:
    """Write for each connection what `poll` shall look for; return how many."""
    link, polled = load(context + Context.LINKS.at), load(context + Context.POLLED.at)
    links = load(context + Context.NUM_LINKS.at)
    many = links
    for i in range(links):
        word = load(link + Link.IN_SOCKET.at) & 0xFFFFFFFF | POLLIN
        is_one = load(link + Link.IN_SOCKET.at) == load(link + Link.SOCKET.at)
        if is_one and load(link + Link.FIRST.at) < load(link + Link.LAST.at):
            word |= POLLOUT
        if load(link + Link.ENDED.at):
            word = 0xFFFFFFFF  # a socket below 0 is passed over
        store(polled + 8 * i, word)
        if load(link + Link.PATHS.at) and not load(link + Link.ENDED.at):
            many = _say_which_wait(link, polled, many)
        link += Link.END.at
    return many


@compiled("void(int64)")
def _answer(link: int) -> None:
    """Say that large data have come, when there is room for that."""
    if _has_room(link, 8):
        store(_grow(link, 8), HAD)
        store(link + Link.OWES.at, 0)


@compiled("int64(int64,int64)")
def progress(context: int, arguments: int) -> int:
    """Send and receive what can be; return how many bytes that was."""
    many = load(context + Context.NUM_LINKS.at)
    polled, turn = load(context + Context.POLLED.at), load(context + Context.TURN.at)
    rails = load(context + Context.SCRATCH.at)
    store(context + Context.TURN.at, turn + 1)
    # Asking each of a few sockets costs less than asking `poll` which of them to ask.
    looks = rails and turn & _SELDOM == 0
    every = many <= _FEW or looks
    if not every and poll(polled, _say_what_to_poll(context), 0) <= 0:
        return 0
    link, moved = load(context + Context.LINKS.at), 0
    for i in range(many):
        stirs = every or load(polled + 8 * i) >> 48 or (rails and waits(link))
        if stirs and not load(link + Link.ENDED.at):
            if looks or (rails and load(link + Link.IN_SOCKET.at) < 0):
                moved += change_rails(context, link)
            if waits(link):
                sent = _flush(link)
                store(link + Link.SENT.at, load(link + Link.SENT.at) + sent)
                moved += sent
            moved += drain(context, link)
            if rails and load(link + Link.OWES.at):
                _answer(link)
                _flush(link)
        link += Link.END.at
    return moved


@compiled("int64(int64,int64)")
def wait(context: int, microseconds: int) -> int:
    """Sleep until a connection stirs, at most so long; return whether one did."""
    many = _say_what_to_poll(context)
    polled = load(context + Context.POLLED.at)
    if load(context + Context.WAKE.at) >= 0:
        store(polled + 8 * many, load(context + Context.WAKE.at) | POLLIN)
        many += 1
    return poll_for(polled, many, context + Context.TIME.at, 1000 * microseconds)


@compiled("int64(int64)")
def _keeps(link: int) -> int:
    """Return whether something may have to be sent again from where it lies."""
    large = load(link + Link.LARGE.at)
    return 1 if large > load(link + Link.BASE.at) and large > arrived(link) else 0


@compiled("int64(int64,int64)")
def busy(context: int, way: int) -> int:
    """Return whether something waits to be sent; by one way only, if it is not 0.

    By none also means that nothing has to be sent again from where it lies.
    """
    link, many = load(context + Context.LINKS.at), load(context + Context.NUM_LINKS.at)
    if way:
        link, many = load(load(context + Context.WAYS.at) + 8 * (way - 1)), 1
    for _ in range(many if link else 0):
        if load(link + Link.FIRST.at) < load(link + Link.LAST.at):
            return 1
        if way == 0 and load(link + Link.PATHS.at) and _keeps(link):
            return 1
        link += Link.END.at
    return 0
