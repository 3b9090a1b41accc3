"""Puts and signals by UCX, compiled to run without the interpreter's lock.

Everything is a put, a signal's word, too, which goes when all that was put to the peer
before has landed: UCX is asked to flush, and is not waited for (its fence may block).
So signals go in their order. Peers that TCP alone reaches are sent `messages` instead.
UCX's functions are called by their addresses.

Any threads may call at once: each call holds the context's lock, but while it sleeps.
"""

from __future__ import annotations

from stretto.fabric.hop.base import PutCall, SignalCall
from stretto.fabric.hop.ucx import messages
from stretto.fabric.hop.ucx.words import (
    MOST,
    SLOT_WORDS,
    SLOTS,
    Context,
    PeerWord,
    Slot,
)
from stretto.fabric.jit.atomics import call_c, compiled, load, store
from stretto.fabric.jit.libc import POLLIN, poll_for
from stretto.fabric.jit.locks import enter, leave

_SLOT_BYTES = 8 * SLOT_WORDS
_SIDE_BYTES = 24
_LAST_ERROR = -100
_IN_PROGRESS = 1
_TURNS = 16


@compiled("int64(int64)")
def status_of(word: int) -> int:
    """Return a status of 32 bits as a number."""
    low = word & 0xFFFFFFFF
    return low - (1 << 32) if low >> 31 else low


@compiled("int64(int64,int64)")
def _peer(context: int, rank: int) -> int:
    return load(context + Context.PEERS.at) + PeerWord.END.at * rank


@compiled("void(int64,int64,int64,int64)")
def _note(context: int, peer: int, request: int, slot: int) -> None:
    """Note a request that is not done at once, and what it still reads."""
    if request == 0:
        return
    # UCX returns errors as small negative pointers.
    if _LAST_ERROR <= request < 0:
        store(peer + PeerWord.STATUS.at, request)
        return
    nth = load(context + Context.UNDER_WAY.at)
    entry = load(context + Context.REQUESTS.at) + 24 * nth
    store(entry, request)
    store(entry + 8, slot)
    store(entry + 16, peer)
    store(context + Context.UNDER_WAY.at, nth + 1)
    if slot != 0:
        # The slot is read until UCX has ended this: it is used again only at 0.
        store(slot, load(slot) + 1)


@compiled("void(int64,int64,int64,int64,int64,int64)")
def _begin(
    context: int, peer: int, source: int, nbytes: int, offset: int, slot: int
) -> None:
    """Begin one put."""
    parameters = load(context + Context.PARAMETERS.at)
    at = source - load(context + Context.WINDOW.at)
    if 0 <= at <= load(context + Context.MAPPED.at) - nbytes:
        # Memory of the window was registered once; UCX need not look it up.
        parameters = load(context + Context.MAPPED_PARAMETERS.at)
    request = call_c(
        load(context + Context.PUT.at),
        load(peer + PeerWord.END_POINT.at),
        source,
        nbytes,
        load(peer + PeerWord.BASE.at) + offset,
        load(peer + PeerWord.KEY.at),
        parameters,
    )
    _note(context, peer, request, slot)


@compiled("int64(int64,int64,int64)")
def ended(word: int, point: int, status: int) -> int:
    """Note how a connection has ended: UCX calls it, from `progress`."""
    # The first reason is the true one: what fails later fails because of it.
    if load(word) == 0:
        store(word, status_of(status))
    return 0


@compiled("int64(int64,int64)")
def _put(context: int, arguments: int) -> int:
    peer = _peer(context, load(arguments + PutCall.PEER.at))
    # Nothing more to a peer that has ended; and never more than the table of requests
    # holds.
    if load(peer + PeerWord.STATUS.at) or load(context + Context.UNDER_WAY.at) >= MOST:
        return 0
    nbytes = load(arguments + PutCall.NBYTES.at)
    if nbytes > 0:
        source = load(arguments + PutCall.SOURCE.at)
        offset = load(arguments + PutCall.OFFSET.at)
        if load(peer + PeerWord.BY_MESSAGES.at):
            request = messages.put(context, peer, source, nbytes, offset)
            _note(context, peer, request, 0)
        else:
            _begin(context, peer, source, nbytes, offset, 0)
    return 1


@compiled("int64(int64,int64)")
def put(context: int, arguments: int) -> int:
    """Begin a put; return 0 when there is no room for it yet."""
    enter(context + Context.LOCK.at)
    done = _put(context, arguments)
    leave(context + Context.LOCK.at)
    return done


@compiled("int64(int64,int64)")
def _has_landed(context: int, slot: int) -> int:
    """Return whether what was put before a signal has landed, or never will."""
    request = load(slot + Slot.FLUSH.at)
    if request > 0:
        status = status_of(call_c(load(context + Context.CHECK.at), request))
        if status == _IN_PROGRESS:
            return 0
        call_c(load(context + Context.FREE.at), request)
        request = status
    if request < 0:
        store(load(slot + Slot.PEER.at) + PeerWord.STATUS.at, request)
    # A flush that has failed counts as over: its peer has a status, and others wait
    # behind it.
    store(slot + Slot.FLUSH.at, 0)
    return 1


@compiled("int64(int64)")
def _raise_words(context: int) -> int:
    """Put the words of signals whose turn has come; return how many."""
    done = 0
    while load(context + Context.FIRST_SLOT.at) < load(context + Context.NEXT_SLOT.at):
        nth = load(context + Context.FIRST_SLOT.at)
        slot = load(context + Context.SLOTS.at) + _SLOT_BYTES * (nth % SLOTS)
        is_full = load(context + Context.UNDER_WAY.at) >= MOST
        # In order: a later signal must not overtake this one, even to another peer, as
        # slots are one queue.
        if is_full or not _has_landed(context, slot):
            break
        peer = load(slot + Slot.PEER.at)
        if load(peer + PeerWord.STATUS.at) == 0:
            offset = load(slot + Slot.OFFSET.at)
            _begin(context, peer, slot + Slot.VALUE.at, 8, offset, slot)
        store(slot + Slot.WAITS.at, 0)
        store(context + Context.FIRST_SLOT.at, nth + 1)
        done += 1
    return done


@compiled("int64(int64,int64)")
def _signal(context: int, arguments: int) -> int:
    peer = _peer(context, load(arguments + SignalCall.PEER.at))
    if load(peer + PeerWord.STATUS.at) or load(context + Context.UNDER_WAY.at) >= MOST:
        return 0
    if load(peer + PeerWord.BY_MESSAGES.at):
        _note(context, peer, messages.signal(context, peer, arguments), 0)
        return 1
    nth = load(context + Context.NEXT_SLOT.at)
    slot = load(context + Context.SLOTS.at) + _SLOT_BYTES * (nth % SLOTS)
    # The ring has come round to a slot that UCX still reads.
    if load(slot) != 0 or load(slot + Slot.WAITS.at):
        return 0
    for i in range(3):
        store(
            slot + Slot.SIDE.at + 8 * i, load(arguments + SignalCall.WORDS.at + 8 * i)
        )
    store(slot + Slot.VALUE.at, load(arguments + SignalCall.VALUE.at))
    store(slot + Slot.OFFSET.at, load(arguments + SignalCall.OFFSET.at))
    store(slot + Slot.PEER.at, peer)
    store(slot + Slot.WAITS.at, 1)
    store(context + Context.NEXT_SLOT.at, nth + 1)
    side = load(arguments + SignalCall.SIDE.at)
    _begin(context, peer, slot + Slot.SIDE.at, _SIDE_BYTES, side, slot)
    point = load(peer + PeerWord.END_POINT.at)
    parameters = load(context + Context.PARAMETERS.at)
    flushing = call_c(load(context + Context.FLUSH.at), point, parameters)
    store(slot + Slot.FLUSH.at, flushing)
    _raise_words(context)
    return 1


@compiled("int64(int64,int64)")
def signal(context: int, arguments: int) -> int:
    """Raise a peer's word after all puts before; 0 when there is no room yet."""
    enter(context + Context.LOCK.at)
    done = _signal(context, arguments)
    leave(context + Context.LOCK.at)
    return done


@compiled("int64(int64)")
def _collect(context: int) -> int:
    """Let go of what is done; return how much that was."""
    done, nth = 0, 0
    while nth < load(context + Context.UNDER_WAY.at):
        entry = load(context + Context.REQUESTS.at) + 24 * nth
        request = load(entry)
        status = status_of(call_c(load(context + Context.CHECK.at), request))
        if status == _IN_PROGRESS:
            nth += 1
            continue
        if status < 0:
            store(load(entry + 16) + PeerWord.STATUS.at, status)
        call_c(load(context + Context.FREE.at), request)
        slot = load(entry + 8)
        if slot != 0:
            store(slot, load(slot) - 1)
        left = load(context + Context.UNDER_WAY.at) - 1
        # The last fills the gap: order means nothing among requests.
        last = load(context + Context.REQUESTS.at) + 24 * left
        for i in range(3):
            store(entry + 8 * i, load(last + 8 * i))
        store(context + Context.UNDER_WAY.at, left)
        done += 1
    return done


@compiled("int64(int64)")
def turn(context: int) -> int:
    """Send and receive what can be, for who has the lock."""
    moved, worker = 0, load(context + Context.WORKER.at)
    if worker == 0:
        return 0
    # At most so many: a peer that floods us must not keep this thread.
    for _ in range(_TURNS):
        done = call_c(load(context + Context.PROGRESS.at), worker) & 0xFFFFFFFF
        if done == 0:
            break
        moved += done
    return moved + _collect(context) + _raise_words(context)


@compiled("int64(int64,int64)")
def progress(context: int, arguments: int) -> int:
    """Send and receive what can be; return how much was done."""
    enter(context + Context.LOCK.at)
    moved = turn(context)
    leave(context + Context.LOCK.at)
    return moved


@compiled("int64(int64,int64)")
def arm(context: int, arguments: int) -> int:
    """Have the descriptor turn readable from now on; 0: something is there already."""
    enter(context + Context.LOCK.at)
    worker, armed = load(context + Context.WORKER.at), 1
    if worker != 0:
        status = status_of(call_c(load(context + Context.ARM.at), worker))
        armed = 1 if status == 0 else 0
    leave(context + Context.LOCK.at)
    return armed


@compiled("int64(int64,int64)")
def wait(context: int, microseconds: int) -> int:
    """Sleep until something comes, at most so long; return whether something did."""
    if load(context + Context.WORKER.at) == 0:
        return 0
    # UCX arms only when nothing is there; each try may find something.
    for _ in range(_TURNS):
        if arm(context, 0):
            break
        if progress(context, 0) > 0:
            return 1
    polled = context + Context.POLLED.at
    for at in (polled, polled + 8):  # a descriptor below 0 is passed over
        store(at, load(at) & 0xFFFFFFFF | POLLIN)
    return poll_for(polled, 2, context + Context.TIME.at, 1000 * microseconds)


@compiled("int64(int64,int64)")
def busy(context: int, arguments: int) -> int:
    """Return whether something is under way."""
    if load(context + Context.WORKER.at) == 0:
        return 0
    last = load(context + Context.NEXT_SLOT.at)
    waiting = load(context + Context.FIRST_SLOT.at) < last
    return 1 if waiting or load(context + Context.UNDER_WAY.at) > 0 else 0
