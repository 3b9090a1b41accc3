"""Puts and signals by UCX, compiled to run without the interpreter's lock.

Everything is a put, a signal's word, too, which goes when all that was put to the peer
before has landed: UCX is asked to flush, and is not waited for (its fence may block).
So signals go in their order. Peers that TCP alone reaches are sent `messages` instead.
UCX's functions are called by their addresses.

Any threads may call at once: each call holds the context's lock, but while it sleeps.
"""

from __future__ import annotations

import select
from collections.abc import Callable

from numba import types

from stretto.hop.ucx import messages
from stretto.hop.ucx.words import MOST, SLOT_WORDS, SLOTS, Context, Peer, Slot
from stretto.jit.atomics import call_c, compiled, load, store
from stretto.jit.locks import enter, leave

__all__ = ["arm", "busy", "ended", "progress", "put", "signal", "turn", "wait"]

_ppoll: Callable[[int, int, int, int], int] = types.ExternalFunction(
    "ppoll", types.int32(types.int64, types.int64, types.int64, types.int64)
)
_POLLIN = int(getattr(select, "POLLIN", 1)) << 32
_WORKER, _PUT, _FLUSH = 8 * Context.WORKER, 8 * Context.PUT, 8 * Context.FLUSH
_PROGRESS, _CHECK, _FREE = 8 * Context.PROGRESS, 8 * Context.CHECK, 8 * Context.FREE
_ARM, _PARAMETERS, _PEERS = 8 * Context.ARM, 8 * Context.PARAMETERS, 8 * Context.PEERS
_REQUESTS, _UNDER_WAY = 8 * Context.REQUESTS, 8 * Context.UNDER_WAY
_SLOTS, _NEXT_SLOT = 8 * Context.SLOTS, 8 * Context.NEXT_SLOT
_POLLED, _TIME = 8 * Context.POLLED, 8 * Context.TIME
_END_POINT, _KEY, _BASE = 8 * Peer.END_POINT, 8 * Peer.KEY, 8 * Peer.BASE
_STATUS, _PEER_BYTES = 8 * Peer.STATUS, 8 * Peer.END
_BY_MESSAGES = 8 * Peer.BY_MESSAGES
_MOST, _SLOT_BYTES, _NUM_SLOTS = MOST, 8 * SLOT_WORDS, SLOTS
_SIDE_BYTES, _SIDE, _VALUE = 24, 8 * Slot.SIDE, 8 * Slot.VALUE
_OFFSET, _WHOM, _FLUSHING = 8 * Slot.OFFSET, 8 * Slot.PEER, 8 * Slot.FLUSH
_WAITS, _FIRST_SLOT = 8 * Slot.WAITS, 8 * Context.FIRST_SLOT
_LOCK, _WINDOW = 8 * Context.LOCK, 8 * Context.WINDOW
_MAPPED, _MAPPED_PARAMETERS = 8 * Context.MAPPED, 8 * Context.MAPPED_PARAMETERS
_LAST_ERROR = -100
_IN_PROGRESS = 1
_TURNS = 16


@compiled("int64(int64)")
def _status(word: int) -> int:
    """Return a status of 32 bits as a number."""
    low = word & 0xFFFFFFFF
    return low - (1 << 32) if low >> 31 else low


@compiled("int64(int64,int64)")
def _peer(context: int, rank: int) -> int:
    return load(context + _PEERS) + _PEER_BYTES * rank


@compiled("void(int64,int64,int64,int64)")
def _note(context: int, peer: int, request: int, slot: int) -> None:
    """Note a request that is not done at once, and what it still reads."""
    if request == 0:
        return
    if _LAST_ERROR <= request < 0:
        store(peer + _STATUS, request)
        return
    nth = load(context + _UNDER_WAY)
    entry = load(context + _REQUESTS) + 24 * nth
    store(entry, request)
    store(entry + 8, slot)
    store(entry + 16, peer)
    store(context + _UNDER_WAY, nth + 1)
    if slot != 0:
        store(slot, load(slot) + 1)


@compiled("void(int64,int64,int64,int64,int64,int64)")
def _begin(
    context: int, peer: int, source: int, nbytes: int, offset: int, slot: int
) -> None:
    """Begin one put."""
    parameters, at = load(context + _PARAMETERS), source - load(context + _WINDOW)
    if 0 <= at <= load(context + _MAPPED) - nbytes:
        parameters = load(context + _MAPPED_PARAMETERS)
    request = call_c(
        load(context + _PUT),
        load(peer + _END_POINT),
        source,
        nbytes,
        load(peer + _BASE) + offset,
        load(peer + _KEY),
        parameters,
    )
    _note(context, peer, request, slot)


@compiled("int64(int64,int64,int64)")
def ended(word: int, point: int, status: int) -> int:
    """Note how a connection has ended: UCX calls it, from `progress`."""
    if load(word) == 0:
        store(word, _status(status))
    return 0


@compiled("int64(int64,int64)")
def _put(context: int, arguments: int) -> int:
    peer = _peer(context, load(arguments))
    if load(peer + _STATUS) or load(context + _UNDER_WAY) >= _MOST:
        return 0
    nbytes = load(arguments + 32)
    if nbytes > 0:
        source, offset = load(arguments + 16), load(arguments + 24)
        if load(peer + _BY_MESSAGES):
            request = messages.put(context, peer, source, nbytes, offset)
            _note(context, peer, request, 0)
        else:
            _begin(context, peer, source, nbytes, offset, 0)
    return 1


@compiled("int64(int64,int64)")
def put(context: int, arguments: int) -> int:
    """Begin a put; return 0 when there is no room for it yet."""
    enter(context + _LOCK)
    done = _put(context, arguments)
    leave(context + _LOCK)
    return done


@compiled("int64(int64,int64)")
def _has_landed(context: int, slot: int) -> int:
    """Return whether what was put before a signal has landed, or never will."""
    request = load(slot + _FLUSHING)
    if request > 0:
        status = _status(call_c(load(context + _CHECK), request))
        if status == _IN_PROGRESS:
            return 0
        call_c(load(context + _FREE), request)
        request = status
    if request < 0:
        store(load(slot + _WHOM) + _STATUS, request)
    store(slot + _FLUSHING, 0)
    return 1


@compiled("int64(int64)")
def _raise_words(context: int) -> int:
    """Put the words of signals whose turn has come; return how many."""
    done = 0
    while load(context + _FIRST_SLOT) < load(context + _NEXT_SLOT):
        nth = load(context + _FIRST_SLOT)
        slot = load(context + _SLOTS) + _SLOT_BYTES * (nth % _NUM_SLOTS)
        if load(context + _UNDER_WAY) >= _MOST or not _has_landed(context, slot):
            break
        peer = load(slot + _WHOM)
        if load(peer + _STATUS) == 0:
            _begin(context, peer, slot + _VALUE, 8, load(slot + _OFFSET), slot)
        store(slot + _WAITS, 0)
        store(context + _FIRST_SLOT, nth + 1)
        done += 1
    return done


@compiled("int64(int64,int64)")
def _signal(context: int, arguments: int) -> int:
    peer = _peer(context, load(arguments))
    if load(peer + _STATUS) or load(context + _UNDER_WAY) >= _MOST:
        return 0
    if load(peer + _BY_MESSAGES):
        _note(context, peer, messages.signal(context, peer, arguments), 0)
        return 1
    nth = load(context + _NEXT_SLOT)
    slot = load(context + _SLOTS) + _SLOT_BYTES * (nth % _NUM_SLOTS)
    if load(slot) != 0 or load(slot + _WAITS):
        return 0
    for i in range(3):
        store(slot + _SIDE + 8 * i, load(arguments + 40 + 8 * i))
    store(slot + _VALUE, load(arguments + 24))
    store(slot + _OFFSET, load(arguments + 16))
    store(slot + _WHOM, peer)
    store(slot + _WAITS, 1)
    store(context + _NEXT_SLOT, nth + 1)
    _begin(context, peer, slot + _SIDE, _SIDE_BYTES, load(arguments + 32), slot)
    point, parameters = load(peer + _END_POINT), load(context + _PARAMETERS)
    flushing = call_c(load(context + _FLUSH), point, parameters)
    store(slot + _FLUSHING, flushing)
    _raise_words(context)
    return 1


@compiled("int64(int64,int64)")
def signal(context: int, arguments: int) -> int:
    """Raise a peer's word after all puts before; 0 when there is no room yet."""
    enter(context + _LOCK)
    done = _signal(context, arguments)
    leave(context + _LOCK)
    return done


@compiled("int64(int64)")
def _collect(context: int) -> int:
    """Let go of what is done; return how much that was."""
    done, nth = 0, 0
    while nth < load(context + _UNDER_WAY):
        entry = load(context + _REQUESTS) + 24 * nth
        request = load(entry)
        status = _status(call_c(load(context + _CHECK), request))
        if status == _IN_PROGRESS:
            nth += 1
            continue
        if status < 0:
            store(load(entry + 16) + _STATUS, status)
        call_c(load(context + _FREE), request)
        slot = load(entry + 8)
        if slot != 0:
            store(slot, load(slot) - 1)
        left = load(context + _UNDER_WAY) - 1
        last = load(context + _REQUESTS) + 24 * left
        for i in range(3):
            store(entry + 8 * i, load(last + 8 * i))
        store(context + _UNDER_WAY, left)
        done += 1
    return done


@compiled("int64(int64)")
def turn(context: int) -> int:
    """Send and receive what can be, for who has the lock."""
    moved, worker = 0, load(context + _WORKER)
    if worker == 0:
        return 0
    for _ in range(_TURNS):
        done = call_c(load(context + _PROGRESS), worker) & 0xFFFFFFFF
        if done == 0:
            break
        moved += done
    return moved + _collect(context) + _raise_words(context)


@compiled("int64(int64,int64)")
def progress(context: int, arguments: int) -> int:
    """Send and receive what can be; return how much was done."""
    enter(context + _LOCK)
    moved = turn(context)
    leave(context + _LOCK)
    return moved


@compiled("int64(int64,int64)")
def arm(context: int, arguments: int) -> int:
    """Have the descriptor turn readable from now on; 0: something is there already."""
    enter(context + _LOCK)
    worker, armed = load(context + _WORKER), 1
    if worker != 0:
        status = _status(call_c(load(context + _ARM), worker))
        armed = 1 if status == 0 else 0
    leave(context + _LOCK)
    return armed


@compiled("int64(int64,int64)")
def wait(context: int, microseconds: int) -> int:
    """Sleep until something comes, at most so long; return whether something did."""
    if load(context + _WORKER) == 0:
        return 0
    for _ in range(_TURNS):
        if arm(context, 0):
            break
        if progress(context, 0) > 0:
            return 1
    store(context + _TIME, microseconds // 1_000_000)
    store(context + _TIME + 8, microseconds % 1_000_000 * 1000)
    polled = context + _POLLED
    for at in (polled, polled + 8):  # a descriptor below 0 is passed over
        store(at, load(at) & 0xFFFFFFFF | _POLLIN)
    return 1 if _ppoll(polled, 2, context + _TIME, 0) > 0 else 0


@compiled("int64(int64,int64)")
def busy(context: int, arguments: int) -> int:
    """Return whether something is under way."""
    if load(context + _WORKER) == 0:
        return 0
    waiting = load(context + _FIRST_SLOT) < load(context + _NEXT_SLOT)
    return 1 if waiting or load(context + _UNDER_WAY) > 0 else 0
