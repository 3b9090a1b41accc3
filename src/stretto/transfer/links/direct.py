"""Bytes that go straight from where they lie to where they belong, compiled.

What is to be sent waits in a short queue of a link: pieces of memory, the peer's field
that they go to (`stretto.hop.fields`), and the record that announces them. Whoever
looks at the link pushes the queue on, so nobody waits for a peer that does not read.

A record that announces bytes says how many. It is not taken before so many have
landed: they may have gone by several lanes.
"""

from __future__ import annotations

from collections.abc import Callable

from numba import types

from stretto.hop import MORE
from stretto.hop.fields import FIELDS, PIECE_WORDS, Field
from stretto.jit.atomics import (
    call,
    compiled,
    load,
    load_acquire,
    store,
    store_release,
    take,
)
from stretto.jit.locks import enter
from stretto.transfer.copying.words import Status
from stretto.transfer.links import words
from stretto.transfer.links.rings import far_put, post, taken
from stretto.transfer.links.words import (
    MOST_FIELDS,
    MOST_SENDS,
    RECORD,
    RING,
    SLOTS,
    Block,
    Kind,
    Send,
)

__all__ = ["field_at", "is_whole", "pop", "push", "reset", "send"]

_memcpy: Callable[[int, int, int], int] = types.ExternalFunction(
    "memcpy", types.int64(types.int64, types.int64, types.int64)
)
_QUICK_PUT, _QUICK_GET = int(Kind.QUICK_PUT), int(Kind.QUICK_GET)
_DONE, _END = int(Kind.DONE), int(Kind.END)
_STALE, _DONE_WELL = int(Status.STALE), int(Status.DONE)
_CONTEXT, _BUSY, _PEER = 8 * Block.CONTEXT, 8 * Block.BUSY, 8 * Block.PEER
_LANES, _FIELD_TABLE, _SENDS = 8 * Block.LANES, 8 * Block.FIELDS, 8 * Block.SENDS
_FIRST, _LAST = 8 * Block.FIRST_SEND, 8 * Block.LAST_SEND
_PUSH_LOCK, _IN = 8 * Block.PUSH_LOCK, 8 * Block.IN
_TAIL, _HEAD = int(words.Word.TAIL), int(words.Word.HEAD)
_STAGED, _TAKE_LOCK = int(words.Word.STAGED), 8 * Block.TAKE_LOCK
_PIECES, _COUNT, _NEXT = 8 * Send.PIECES, 8 * Send.COUNT, 8 * Send.NEXT
_INTO, _TO, _CANCEL = 8 * Send.INTO, 8 * Send.TO, 8 * Send.CANCEL
_EPOCH, _WANT, _RECORD = 8 * Send.EPOCH, 8 * Send.WANT, 8 * Send.RECORD
_LANE, _SEND_BYTES = 8 * Send.LANE, 8 * Send.END
_PIECE, _FIELD_BYTES = 8 * PIECE_WORDS, 8 * Field.END
_FIELD_PIECES, _USE = 8 * Field.PIECES, 8 * Field.GENERATION
_LANDED, _DROPPED = 8 * Field.LANDED, 8 * Field.DROPPED
_CHUNK, _STRIPE = 1 << 20, 256 << 10
"""Bytes that are put at once: what is said meanwhile waits for them."""
_COPIED = 8 << 10
"""Bytes that a hop has read when its put returns."""


@compiled("int64(int64,int64)")
def field_at(link: int, offset: int) -> int:
    """Return the address of a field of ours that is open, or 0."""
    index, use = offset >> 40 & 0xFFF, offset >> 52 & 0x3FF
    table = load(link + _FIELD_TABLE)
    if table == 0 or offset < FIELDS or index >= MOST_FIELDS:
        return 0
    field = table + _FIELD_BYTES * index
    is_open = load(field + _FIELD_PIECES) and load(field + _USE) == use
    return field if is_open else 0


@compiled("int64(int64)")
def reset(field: int) -> int:
    """Make a field ready for the next bytes; return what became of the last ones."""
    dropped = load(field + _DROPPED)
    store(field + _DROPPED, 0)
    store_release(field + _LANDED, 0)
    return _STALE if dropped else _DONE_WELL


@compiled("int64(int64,int64)")
def is_whole(link: int, record: int) -> int:
    """Return whether a record can be dealt with.

    What it announces has landed, and there is room for an answer.
    """
    kind = load(record)
    wants_answer = kind in (_QUICK_PUT, _QUICK_GET)
    if wants_answer and load(link + _LAST) - load(link + _FIRST) >= MOST_SENDS:
        return 0
    if kind in (_QUICK_PUT, _DONE, _END) and load(record + 48):
        field = field_at(link, load(record + 48))
        if field and load_acquire(field + _LANDED) < load(record + 56):
            return 0
    return 1


@compiled("int64(int64,int64,int64)")
def _free_lane(link: int, first: int, nbytes: int) -> int:
    """Return a lane that has nothing to send, or -1."""
    if nbytes <= _COPIED:
        return 0
    lanes = load(link + _LANES)
    way = 1 + load(link + _PEER) * lanes
    for i in range(lanes):
        lane = (first + i) % lanes
        if not call(load(link + _BUSY), load(link + _CONTEXT), way + lane):
            return lane
    return -1


@compiled("int64(int64,int64)")
def _put_all(link: int, entry: int) -> int:
    """Put what there is room for; return whether that was all."""
    count, cancel = load(entry + _COUNT), load(entry + _CANCEL)
    most = _CHUNK if load(link + _LANES) == 1 else _STRIPE
    while load(entry + _NEXT) < count:
        if cancel and load_acquire(cancel):
            store(entry + _NEXT, count)
            store(entry + _RECORD, 0)
            return 1
        nth, into = load(entry + _NEXT), load(entry + _INTO)
        piece = load(entry + _PIECES) + _PIECE * nth
        nbytes = min(load(piece + 8) - into, most)
        lane = _free_lane(link, load(entry + _LANE), nbytes)
        if lane < 0:
            return 0
        ends = into + nbytes == load(piece + 8)
        follows = ends and nth == count - 1 and load(entry + _EPOCH) == 0 and lane == 0
        more = MORE if follows or nbytes <= _COPIED else 0
        to = load(entry + _TO) + load(piece + 16) + into
        if not far_put(link, load(piece) + into, to, nbytes, lane + more):
            return 0
        store(entry + _NEXT, nth + ends)
        store(entry + _INTO, 0 if ends else into + nbytes)
        store(entry + _LANE, lane + 1)
    return 1


@compiled("int64(int64,int64)")
def _sent(link: int, entry: int) -> int:
    """Go on with the first of the queue; return whether it is done."""
    if not _put_all(link, entry):
        return 0
    if load(entry + _RECORD) == 0:
        return 1
    epoch = load(entry + _EPOCH)
    if epoch:  # what was read before it changed is right
        is_large = load(entry + _RECORD + 56) > _COPIED
        if is_large and call(load(link + _BUSY), load(link + _CONTEXT), 0):
            return 0
        if load_acquire(epoch) != load(entry + _WANT):
            store(entry + _RECORD + 16, _STALE)
    store(entry + _RECORD + 40, load(load(link + _IN) + _STAGED))
    return 1 if post(link, entry + _RECORD) else 0


@compiled("int64(int64)")
def _pushed(link: int) -> int:
    """Go on with the queue, which is ours now; return whether anything moved."""
    moved = 0
    while load(link + _FIRST) < load(link + _LAST):
        first = load(link + _FIRST)
        entry = load(link + _SENDS) + _SEND_BYTES * (first % MOST_SENDS)
        before = load(entry + _NEXT) + load(entry + _INTO)
        done = _sent(link, entry)
        if done or load(entry + _NEXT) + load(entry + _INTO) != before:
            moved = 1
        if not done:
            break
        store_release(link + _FIRST, first + 1)
    return moved


@compiled("int64(int64)")
def push(link: int) -> int:
    """Go on with what waits to be sent, unless another thread is at it."""
    if load(link + _FIRST) >= load(link + _LAST) or not take(link + _PUSH_LOCK, 1):
        return 0
    moved = _pushed(link)
    store_release(link + _PUSH_LOCK, 0)
    return moved


@compiled("int64(int64,int64)")
def send(link: int, wanted: int) -> int:
    """Queue what the words of a `Send` say; return its number, from 1 on, or 0."""
    enter(link + _PUSH_LOCK)
    last = load(link + _LAST)
    if last - load(link + _FIRST) >= MOST_SENDS:
        store_release(link + _PUSH_LOCK, 0)
        return 0
    entry = load(link + _SENDS) + _SEND_BYTES * (last % MOST_SENDS)
    for i in range(0, _RECORD + RECORD, 8):
        store(entry + i, load(wanted + i))
    store_release(link + _LAST, last + 1)
    _pushed(link)
    store_release(link + _PUSH_LOCK, 0)
    return last + 1


@compiled("int64(int64,int64)")
def pop(link: int, record: int) -> int:
    """Take a record; return whether there was one."""
    inner = load(link + _IN)
    if load_acquire(inner + _TAIL) <= load(inner + _HEAD):
        return 0
    enter(link + _TAKE_LOCK)
    head = load(inner + _HEAD)
    got = 0
    record_at = inner + RING + head % SLOTS * RECORD
    if load_acquire(inner + _TAIL) > head and is_whole(link, record_at):
        _memcpy(record, record_at, RECORD)
        taken(link, inner, head + 1)
        got = 1
    store_release(link + _TAKE_LOCK, 0)
    return got
