"""What comes on a connection, compiled: frames in a buffer, and large data in place."""

from __future__ import annotations

import errno

from stretto.fabric.hop.fields import FIELDS
from stretto.fabric.hop.inside import may_put, raised
from stretto.fabric.hop.tcp.landing import aim, aimed, drop, land, landed
from stretto.fabric.hop.tcp.paths import (
    deaf,
    fail,
    follow,
    next_run,
    skipped,
    why,
)
from stretto.fabric.hop.tcp.words import (
    AFTER_LARGE,
    BUFFER,
    HAD,
    PUT,
    PUT_WORDS,
    SIGNAL,
    SIGNAL_WORDS,
    SMALL,
    Context,
    End,
    Link,
)
from stretto.fabric.jit.atomics import compiled, load, store
from stretto.fabric.jit.libc import NO_WAIT, memcpy, recv, recvmsg

_AGAIN, _INTERRUPTED = errno.EAGAIN, errno.EINTR
_ROUNDS = 16
"""Receives of one connection before others have their turn."""

_PUT_BYTES, _SIGNAL_BYTES = 8 * PUT_WORDS, 8 * SIGNAL_WORDS


@compiled("int64(int64,int64)")
def _take(context: int, link: int) -> int:
    """Deal with the frames in the buffer; return whether all of it made sense."""
    window = context + Context.WINDOW.at
    while True:
        at = load(link + Link.IN.at) + load(link + Link.IN_FROM.at)
        here = load(link + Link.IN_TO.at) - load(link + Link.IN_FROM.at)
        left = load(link + Link.LEFT.at)
        # The rest of a put: it was begun with an earlier frame, and comes before any
        # other.
        if left > 0:
            nbytes = min(left, here)
            if load(link + Link.FIELD.at):
                land(link, at, nbytes)
            else:
                memcpy(load(link + Link.TARGET.at), at, nbytes)
                store(link + Link.TARGET.at, load(link + Link.TARGET.at) + nbytes)
                store(link + Link.LEFT.at, left - nbytes)
            store(link + Link.IN_FROM.at, load(link + Link.IN_FROM.at) + nbytes)
            if nbytes == here:
                return 1
            continue
        if here < 8:
            return 1
        if load(at) == PUT:
            # Half a frame stays in the buffer until the rest has come.
            if here < _PUT_BYTES:
                return 1
            offset, nbytes = load(at + 8), load(at + 16)
            if offset >= FIELDS:
                if not aim(context, link, offset, nbytes):
                    return 0
            else:
                # A peer that is broken, or is none of ours, must not write elsewhere:
                # it ends the connection, not this process.
                if not may_put(window, offset, nbytes):
                    return 0
                store(link + Link.FIELD.at, 0)
                store(link + Link.TARGET.at, load(window) + offset)
                store(link + Link.LEFT.at, nbytes)
            # Receive little into the buffer now, so that most of what is large goes
            # straight into place.
            if nbytes > SMALL:
                store(link + Link.ROOM.at, AFTER_LARGE)
            store(link + Link.IN_FROM.at, load(link + Link.IN_FROM.at) + _PUT_BYTES)
        elif load(at) == SIGNAL:
            if here < _SIGNAL_BYTES:
                return 1
            if not raised(window, at + 8):
                return 0
            store(link + Link.IN_FROM.at, load(link + Link.IN_FROM.at) + _SIGNAL_BYTES)
        elif load(at) == HAD:  # it is to wake who waits, and has done so
            store(link + Link.IN_FROM.at, load(link + Link.IN_FROM.at) + 8)
        else:
            return 0


@compiled("int64(int64,int64,int64)")
def _receive_rest(link: int, left: int, room: int) -> int:
    """Receive the rest of a put's data into place, and what follows into the buffer."""
    vector, message, many = link + Link.VECTOR.at, link + Link.MESSAGE.at, 2
    if load(link + Link.FIELD.at):
        many = aimed(link, room)
        if many == 0:
            return drop(link)
    else:
        store(vector, load(link + Link.TARGET.at))
        store(vector + 8, left)
        store(vector + 16, load(link + Link.IN.at))
        store(vector + 24, room)
        store(link + Link.ASKED.at, left + room)
    store(message + 16, vector)
    store(message + 24, many)
    got = recvmsg(load(link + Link.IN_SOCKET.at), message, NO_WAIT)
    if load(link + Link.FIELD.at):
        store(link + Link.IN_TO.at, landed(link, got))
    elif got > 0:
        placed = min(got, left)
        store(link + Link.TARGET.at, load(link + Link.TARGET.at) + placed)
        store(link + Link.LEFT.at, left - placed)
        store(link + Link.IN_TO.at, got - placed)
    return got


@compiled("int64(int64)")
def _receive(link: int) -> int:
    """Receive once, into place and into the buffer; return how much, or less than 0."""
    left, start = load(link + Link.LEFT.at), load(link + Link.IN_FROM.at)
    here = load(link + Link.IN_TO.at) - start
    if start > 0:  # less than a frame, if anything
        # Source and target overlap: byte by byte, from the front.
        for i in range(here):
            memcpy(load(link + Link.IN.at) + i, load(link + Link.IN.at) + start + i, 1)
        store(link + Link.IN_FROM.at, 0)
        store(link + Link.IN_TO.at, here)
    room = load(link + Link.ROOM.at)
    if left == 0:
        asked = min(room, BUFFER - here)
        store(link + Link.ASKED.at, asked)
        sock = load(link + Link.IN_SOCKET.at)
        got = recv(sock, load(link + Link.IN.at) + here, asked, NO_WAIT)
        if got > 0:
            store(link + Link.IN_TO.at, here + got)
        # It came as fast as was asked: ask for more at once the next time.
        if got == asked:
            store(link + Link.ROOM.at, min(2 * room, BUFFER))
        return got
    return _receive_rest(link, left, room)


@compiled("void(int64,int64)")
def _hang_up(link: int, error: int) -> None:
    """Note that the connection that is received from has ended."""
    if load(link + Link.PATHS.at):
        deaf(link, error)
    else:
        fail(link, End.FAILED if error else End.CLOSED, error)


@compiled("int64(int64,int64)")
def drain(context: int, link: int) -> int:
    """Take what has come on a connection; return how many bytes."""
    taken, rest = 0, load(link + Link.LEFT.at)
    for _ in range(_ROUNDS):
        if load(link + Link.IN_SOCKET.at) < 0:  # of many none has begun, or all ended
            break
        skips = load(link + Link.SKIP.at) > 0
        if skips:
            got = skipped(link, load(context + Context.SCRATCH.at))
        else:
            got = _receive(link)
        if got < 0:
            error = why()
            if error == _INTERRUPTED:
                continue
            if error != _AGAIN:
                _hang_up(link, error)
            break
        if got == 0:
            _hang_up(link, 0)
            break
        taken += got
        if not skips:
            store(link + Link.TAKEN.at, load(link + Link.TAKEN.at) + got)
            if not _take(context, link):
                fail(link, End.NONSENSE, 0)
                break
        # The socket is empty; asking again would cost a call to hear that.
        if got < load(link + Link.ASKED.at):
            break
    if load(link + Link.PATHS.at) and (rest > 0 or taken > SMALL):
        store(link + Link.OWES.at, 1)
    store(link + Link.RECEIVED.at, load(link + Link.RECEIVED.at) + taken)
    return taken


@compiled("int64(int64,int64)")
def change_rails(context: int, link: int) -> int:
    """Receive by another connection where a peer goes on by one; return whether so."""
    path = next_run(link)
    if path == 0:
        if load(link + Link.IN_SOCKET.at) < 0:
            deaf(link, 0)
        return 0
    while drain(context, link) > 0:  # what has come by the one before
        pass
    if not load(link + Link.ENDED.at) and not follow(link, path):
        fail(link, End.NONSENSE, 0)
    return 1
