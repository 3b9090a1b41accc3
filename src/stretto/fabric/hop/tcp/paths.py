"""The connections of a lane, compiled: how one ends, and which of several is in use.

A lane is a stream of bytes. Where hosts have several rails there is a connection by
each, numbered, of which one is sent by and the others wait. When its rail fails, the
lane goes on by the next one, from the first byte on that may not have arrived: what
waits to be sent is kept until the peer's system has acknowledged it. Whoever receives
knows how much of the stream it has, and passes over what it has twice.

A connection that was left is never used again, so what comes late by it lands nowhere.
A rail that works again gets a new connection, with a larger number (mending.py).
"""

from __future__ import annotations

import errno
import select
import socket
import termios

from stretto.fabric.hop.tcp.words import BUFFER, RUN, RUN_WORDS, End, Link, RailWord
from stretto.fabric.jit.atomics import compiled, load, store
from stretto.fabric.jit.libc import (
    NO_WAIT,
    epoll_ctl,
    errno_at,
    ioctl,
    recv,
    send,
)

NO_SENDING, NO_HEARING = 1, 2
_QUIET = NO_WAIT | int(getattr(socket, "MSG_NOSIGNAL", 0))
_AGAIN, _INTERRUPTED = errno.EAGAIN, errno.EINTR
_HEAD_BYTES = 8 * RUN_WORDS
_NOT_ARRIVED = termios.TIOCOUTQ
_CHANGE, _IN = int(getattr(select, "EPOLL_CTL_MOD", 3)), select.EPOLLIN
_IN_OR_OUT = select.EPOLLIN | select.EPOLLOUT


@compiled("int64()")
def why() -> int:
    """Return the system's number of what just went wrong."""
    return load(errno_at()) & 0xFFFFFFFF


@compiled("void(int64,int64,int64)")
def fail(link: int, how: int, error: int) -> None:
    """End a lane: nothing is sent by it any more."""
    store(link + Link.ERROR.at, error)
    store(link + Link.ENDED.at, how)
    # What waits is dropped: otherwise `busy` would say for ever that sources are read.
    store(link + Link.FIRST.at, 0)
    store(link + Link.LAST.at, 0)
    store(link + Link.LARGE.at, 0)


# What is sent.


@compiled("int64(int64,int64)")
def _next(link: int, least: int) -> int:
    """Return the connection with the least number from one on, or 0: there is none."""
    path, found = load(link + Link.PATHS.at), 0
    for _ in range(load(link + Link.SLOTS.at)):
        number, ended = load(path + RailWord.NUMBER.at), load(path + RailWord.ENDED.at)
        sends = load(path + RailWord.SOCKET.at) >= 0 and not ended & NO_SENDING
        is_first = found == 0 or number < load(found + RailWord.NUMBER.at)
        if sends and number >= least and is_first:
            found = path
        path += RailWord.END.at
    return found


@compiled("int64(int64)")
def _go_on(link: int) -> int:
    """Send by a later connection, from what may not have arrived on; 0: by none."""
    path = _next(link, max(load(link + Link.NUMBER.at) + 1, load(link + Link.LEAVE.at)))
    if path == 0:
        return 0
    store(link + Link.SOCKET.at, load(path + RailWord.SOCKET.at))
    store(link + Link.NUMBER.at, load(path + RailWord.NUMBER.at))
    store(link + Link.FIRST.at, 0)
    store(link + Link.DONE.at, 0)
    store(link + Link.POSITION.at, load(link + Link.BASE.at))
    store(link + Link.HEAD.at, RUN)
    store(link + Link.HEAD.at + 8, load(link + Link.BASE.at))
    store(link + Link.HEAD_LEFT.at, _HEAD_BYTES)
    return 1


@compiled("int64(int64,int64)")
def lost(link: int, error: int) -> int:
    """Leave the connection that is sent by, as it has failed; 0: it was the last."""
    slot = load(link + Link.NUMBER.at) % load(link + Link.SLOTS.at)
    path = load(link + Link.PATHS.at) + RailWord.END.at * slot
    store(path + RailWord.ENDED.at, load(path + RailWord.ENDED.at) | NO_SENDING)
    store(path + RailWord.ERROR.at, error)
    if _go_on(link):
        return 1
    fail(link, End.FAILED, error)
    return 0


@compiled("int64(int64)")
def introduced(link: int) -> int:
    """Have the connection that is sent by begin as it must; return whether it has."""
    # One is to be left; where there is no other the lane stays.
    if load(link + Link.NUMBER.at) < load(link + Link.LEAVE.at) and not _go_on(link):
        store(link + Link.LEAVE.at, load(link + Link.NUMBER.at))
    if load(link + Link.NUMBER.at) < 0 and not _go_on(link):
        return 0
    while load(link + Link.HEAD_LEFT.at) > 0:
        left = load(link + Link.HEAD_LEFT.at)
        at = link + Link.HEAD.at + _HEAD_BYTES - left
        sent = send(load(link + Link.SOCKET.at), at, left, _QUIET)
        if sent >= 0:
            store(link + Link.HEAD_LEFT.at, left - sent)
            continue
        error = why()
        if error == _AGAIN:
            return 0
        if error != _INTERRUPTED and not lost(link, error):
            return 0
    return 1


@compiled("int64(int64)")
def stood_in(link: int) -> int:
    """Send something in the place of data that are gone; return how much.

    Less than 0: later; 0: it may not be.

    What was sent before and has been given back since has landed, though its system
    has not said so. The peer passes over it, whatever it is: only its length counts.
    """
    piece = load(link + Link.PIECES.at) + 16 * load(link + Link.FIRST.at)
    left = load(piece + 8) - load(link + Link.DONE.at)
    before = load(link + Link.FURTHEST.at) - load(link + Link.POSITION.at)
    most = min(min(left, before), BUFFER)
    if most <= 0:
        return 0
    any_ = load(link + Link.OUT.at)
    sent = send(load(link + Link.SOCKET.at), any_, most, _QUIET)
    if sent < 0:
        error = why()
        return -1 if error in (_AGAIN, _INTERRUPTED) else 0
    return sent


@compiled("int64(int64)")
def arrived(link: int) -> int:
    """Return up to which position all has arrived; keep nothing when that is all."""
    last, base = load(link + Link.LAST.at), load(link + Link.BASE.at)
    if last == 0 or load(link + Link.HEAD_LEFT.at) or load(link + Link.NUMBER.at) < 0:
        return base
    queued = link + Link.QUEUED.at
    store(queued, 0)
    if ioctl(load(link + Link.SOCKET.at), _NOT_ARRIVED, queued) < 0:
        return base
    position = load(link + Link.POSITION.at)
    if load(link + Link.FIRST.at) == last:
        store(link + Link.JOINS.at, 0)  # the last piece is sent, and grows no more
        if load(queued) == 0:
            store(link + Link.BASE.at, position)
            store(link + Link.FIRST.at, 0)
            store(link + Link.LAST.at, 0)
            store(link + Link.OUT_USED.at, 0)
    return max(base, position - load(queued))


@compiled("void(int64,int64)")
def call_at_room(link: int, wants: int) -> None:
    """Have who sleeps be woken when the system takes more, or no longer."""
    stirs, event = load(link + Link.STIRS.at), link + Link.EVENT.at
    before, now = load(link + Link.ROOM_OF.at), -1
    if wants:
        now = load(link + Link.SOCKET.at)
    if before == now:
        return
    if before >= 0:  # it may be closed; then the system has forgotten it
        store(event, _IN)
        epoll_ctl(stirs, _CHANGE, before, event)
    if now >= 0:
        store(event, _IN_OR_OUT)
        epoll_ctl(stirs, _CHANGE, now, event)
    store(link + Link.ROOM_OF.at, now)


@compiled("int64(int64)")
def waits(link: int) -> int:
    """Return whether something is to be sent."""
    if load(link + Link.FIRST.at) < load(link + Link.LAST.at):
        return 1
    if load(link + Link.PATHS.at) == 0 or load(link + Link.ENDED.at):
        return 0
    leaves = load(link + Link.NUMBER.at) < load(link + Link.LEAVE.at)
    return 1 if leaves or load(link + Link.HEAD_LEFT.at) > 0 else 0


# What is received.


@compiled("int64(int64,int64)")
def _is_after(path: int, number: int) -> int:
    """Return whether a connection is there, and is a later one."""
    later = load(path + RailWord.NUMBER.at) > number
    return 1 if later and load(path + RailWord.SOCKET.at) >= 0 else 0


@compiled("void(int64,int64)")
def deaf(link: int, error: int) -> None:
    """Receive no more by a connection that has ended; the last one ends the lane."""
    number, path = load(link + Link.IN_NUMBER.at), load(link + Link.PATHS.at)
    left, said = 0, error
    for _ in range(load(link + Link.SLOTS.at)):
        if load(path + RailWord.NUMBER.at) == number:
            store(path + RailWord.ENDED.at, load(path + RailWord.ENDED.at) | NO_HEARING)
        elif _is_after(path, number):
            left += not load(path + RailWord.ENDED.at) & NO_HEARING
            said = said or load(path + RailWord.ERROR.at)
        path += RailWord.END.at
    store(link + Link.IN_SOCKET.at, -1)
    if left == 0:
        fail(link, End.FAILED if said else End.CLOSED, said)
    elif load(link + Link.NUMBER.at) == number:
        store(link + Link.LEAVE.at, number + 1)


@compiled("int64(int64)")
def _begins(path: int) -> int:
    """Receive how a connection begins; return whether all of that is here."""
    got, ended = load(path + RailWord.GOT.at), load(path + RailWord.ENDED.at)
    if got == _HEAD_BYTES or ended & NO_HEARING:
        return int(got == _HEAD_BYTES)
    at, left = path + RailWord.HEAD.at + got, _HEAD_BYTES - got
    came = recv(load(path + RailWord.SOCKET.at), at, left, NO_WAIT)
    if came > 0:
        store(path + RailWord.GOT.at, got + came)
        return int(came == left)
    error = why() if came < 0 else 0
    if came == 0 or (error != _AGAIN and error != _INTERRUPTED):
        store(path + RailWord.ERROR.at, error)
        store(path + RailWord.ENDED.at, NO_SENDING | NO_HEARING)
    return 0


@compiled("int64(int64)")
def _heard(link: int) -> int:
    """Return the first of the connections after the present one that begin, or 0."""
    path, found = load(link + Link.PATHS.at), 0
    for _ in range(load(link + Link.SLOTS.at)):
        number = load(path + RailWord.NUMBER.at)
        if _is_after(path, load(link + Link.IN_NUMBER.at)):
            is_first = found == 0 or number < load(found + RailWord.NUMBER.at)
            if _begins(path) and is_first:
                found = path
        path += RailWord.END.at
    return found


@compiled("int64(int64)")
def next_run(link: int) -> int:
    """Return the connection by which the stream goes on to come, or 0.

    What was acknowledged by earlier ones is here before it begins. So it is asked for
    those once more: whatever they begin with, is here, too.
    """
    if _heard(link) == 0:
        return 0
    return _heard(link)


@compiled("int64(int64,int64)")
def follow(link: int, path: int) -> int:
    """Receive by a connection from now on; 0: what it begins with makes no sense."""
    position, taken = load(path + RailWord.HEAD.at + 8), load(link + Link.TAKEN.at)
    if load(path + RailWord.HEAD.at) != RUN or not 0 <= position <= taken:
        return 0
    number = load(path + RailWord.NUMBER.at)
    store(link + Link.SKIP.at, taken - position)
    store(link + Link.IN_NUMBER.at, number)
    store(link + Link.IN_SOCKET.at, load(path + RailWord.SOCKET.at))
    # The peer has left the rail that was used before: so do we.
    if load(link + Link.LEAVE.at) < number:
        store(link + Link.LEAVE.at, number)
    return 1


@compiled("int64(int64,int64)")
def skipped(link: int, scratch: int) -> int:
    """Receive what has come before by another connection; return how much."""
    asked = min(load(link + Link.SKIP.at), BUFFER)
    store(link + Link.ASKED.at, asked)
    got = recv(load(link + Link.IN_SOCKET.at), scratch, asked, NO_WAIT)
    if got > 0:
        store(link + Link.SKIP.at, load(link + Link.SKIP.at) - got)
    return got
