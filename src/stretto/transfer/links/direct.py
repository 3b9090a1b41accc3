"""Bytes that go straight from where they lie to where they belong, compiled.

What is to be sent waits in a short queue of a link: pieces of memory, the peer's field
that they go to (`fabric.hop.fields`), and the record that announces them. Whoever
looks at the link pushes the queue on, so nobody waits for a peer that does not read.

A record that announces bytes says how many. It is not taken before so many have
landed: they may have gone by several lanes.
"""

from __future__ import annotations

from stretto.fabric.channel.rings import far_put, post, taken
from stretto.fabric.channel.words import RECORD, RING, SLOTS, ChannelWord, Word
from stretto.fabric.hop import MORE
from stretto.fabric.hop.fields import FIELDS, PIECE_WORDS, Field
from stretto.fabric.jit.atomics import (
    call,
    compiled,
    load,
    load_acquire,
    store,
    store_release,
    take,
)
from stretto.fabric.jit.libc import memcpy
from stretto.fabric.jit.locks import enter
from stretto.transfer.copying.words import Status
from stretto.transfer.links.words import MOST_FIELDS, MOST_SENDS, Block, Kind, Send

_PIECE = 8 * PIECE_WORDS
_CHUNK, _STRIPE = 1 << 20, 256 << 10
"""Bytes that are put at once: what is said meanwhile waits for them."""
_COPIED = 8 << 10
"""Bytes that a hop has read when its put returns."""


@compiled("int64(int64,int64)")
def field_at(link: int, offset: int) -> int:
    """Return the address of a field of ours that is open, or 0."""
    index, use = offset >> 40 & 0xFFF, offset >> 52 & 0x3FF
    table = load(link + Block.FIELDS.at)
    if table == 0 or offset < FIELDS or index >= MOST_FIELDS:
        return 0
    field = table + Field.END.at * index
    # An offset of an earlier use of this field names nothing.
    is_open = load(field + Field.PIECES.at) and load(field + Field.GENERATION.at) == use
    return field if is_open else 0


@compiled("int64(int64)")
def reset(field: int) -> int:
    """Make a field ready for the next bytes; return what became of the last ones."""
    dropped = load(field + Field.DROPPED.at)
    store(field + Field.DROPPED.at, 0)
    store_release(field + Field.LANDED.at, 0)
    return Status.STALE if dropped else Status.DONE


@compiled("int64(int64,int64)")
def is_whole(link: int, record: int) -> int:
    """Return whether a record can be dealt with.

    What it announces has landed, and there is room for an answer.
    """
    kind = load(record)
    # Do not take a question that could not be answered: its answer would be lost, and
    # the peer would wait.
    wants_answer = kind in (Kind.QUICK_PUT, Kind.QUICK_GET)
    waiting = load(link + Block.LAST_SEND.at) - load(link + Block.FIRST_SEND.at)
    if wants_answer and waiting >= MOST_SENDS:
        return 0
    if kind in (Kind.QUICK_PUT, Kind.DONE, Kind.END) and load(record + 48):
        field = field_at(link, load(record + 48))
        # Records go by one lane, bytes by several: the record may be the quicker.
        if field and load_acquire(field + Field.LANDED.at) < load(record + 56):
            return 0
    return 1


@compiled("int64(int64,int64,int64)")
def _free_lane(link: int, first: int, nbytes: int) -> int:
    """Return a lane that has nothing to send, or -1."""
    # Lane 0 has the records, too: small bytes that go by it need no counting, and the
    # hop has copied them when its put returns.
    if nbytes <= _COPIED:
        return 0
    lanes = load(link + ChannelWord.LANES.at)
    way = 1 + load(link + ChannelWord.PEER.at) * lanes
    for i in range(lanes):
        lane = (first + i) % lanes
        if not call(
            load(link + ChannelWord.BUSY.at),
            load(link + ChannelWord.CONTEXT.at),
            way + lane,
        ):
            return lane
    return -1


@compiled("int64(int64,int64)")
def _put_all(link: int, entry: int) -> int:
    """Put what there is room for; return whether that was all."""
    count, cancel = load(entry + Send.COUNT.at), load(entry + Send.CANCEL.at)
    most = _CHUNK if load(link + ChannelWord.LANES.at) == 1 else _STRIPE
    while load(entry + Send.NEXT.at) < count:
        # Nobody wants the rest: neither bytes nor the record that would announce them.
        if cancel and load_acquire(cancel):
            store(entry + Send.NEXT.at, count)
            store(entry + Send.RECORD.at, 0)
            return 1
        nth, into = load(entry + Send.NEXT.at), load(entry + Send.INTO.at)
        piece = load(entry + Send.PIECES.at) + _PIECE * nth
        nbytes = min(load(piece + 8) - into, most)
        lane = _free_lane(link, load(entry + Send.LANE.at), nbytes)
        if lane < 0:
            return 0
        ends = into + nbytes == load(piece + 8)
        # The record goes by lane 0 right behind these bytes: one call of the system for
        # both. Not where an epoch has to be looked at in between.
        follows = (
            ends and nth == count - 1 and load(entry + Send.EPOCH.at) == 0 and lane == 0
        )
        more = MORE if follows or nbytes <= _COPIED else 0
        to = load(entry + Send.TO.at) + load(piece + 16) + into
        if not far_put(link, load(piece) + into, to, nbytes, lane + more):
            return 0
        store(entry + Send.NEXT.at, nth + ends)
        store(entry + Send.INTO.at, 0 if ends else into + nbytes)
        store(entry + Send.LANE.at, lane + 1)
    return 1


@compiled("int64(int64,int64)")
def _sent(link: int, entry: int) -> int:
    """Go on with the first of the queue; return whether it is done."""
    if not _put_all(link, entry):
        return 0
    if load(entry + Send.RECORD.at) == 0:
        return 1
    epoch = load(entry + Send.EPOCH.at)
    if epoch:  # what was read before it changed is right
        # Small bytes were copied when they were put; of large ones the hop reads the
        # memory until it is not busy.
        is_large = load(entry + Send.RECORD.at + 56) > _COPIED
        if is_large and call(
            load(link + ChannelWord.BUSY.at), load(link + ChannelWord.CONTEXT.at), 0
        ):
            return 0
        if load_acquire(epoch) != load(entry + Send.WANT.at):
            store(entry + Send.RECORD.at + 16, Status.STALE)
    store(
        entry + Send.RECORD.at + 40, load(load(link + ChannelWord.IN.at) + Word.STAGED)
    )
    return 1 if post(link, entry + Send.RECORD.at) else 0


@compiled("int64(int64)")
def _pushed(link: int) -> int:
    """Go on with the queue, which is ours now; return whether anything moved."""
    moved = 0
    while load(link + Block.FIRST_SEND.at) < load(link + Block.LAST_SEND.at):
        first = load(link + Block.FIRST_SEND.at)
        entry = load(link + Block.SENDS.at) + Send.END.at * (first % MOST_SENDS)
        before = load(entry + Send.NEXT.at) + load(entry + Send.INTO.at)
        done = _sent(link, entry)
        if done or load(entry + Send.NEXT.at) + load(entry + Send.INTO.at) != before:
            moved = 1
        # In order: what waits behind it may depend on it.
        if not done:
            break
        store_release(link + Block.FIRST_SEND.at, first + 1)
    return moved


@compiled("int64(int64)")
def push(link: int) -> int:
    """Go on with what waits to be sent, unless another thread is at it."""
    # Looked at without the lock: whoever adds something pushes it himself.
    waits = load(link + Block.FIRST_SEND.at) < load(link + Block.LAST_SEND.at)
    if not waits or not take(link + Block.PUSH_LOCK.at, 1):
        return 0
    moved = _pushed(link)
    store_release(link + Block.PUSH_LOCK.at, 0)
    return moved


@compiled("int64(int64,int64)")
def send(link: int, wanted: int) -> int:
    """Queue what the words of a `Send` say; return its number, from 1 on, or 0."""
    enter(link + Block.PUSH_LOCK.at)
    last = load(link + Block.LAST_SEND.at)
    if last - load(link + Block.FIRST_SEND.at) >= MOST_SENDS:
        store_release(link + Block.PUSH_LOCK.at, 0)
        return 0
    entry = load(link + Block.SENDS.at) + Send.END.at * (last % MOST_SENDS)
    for i in range(0, Send.RECORD.at + RECORD, 8):
        store(entry + i, load(wanted + i))
    store_release(link + Block.LAST_SEND.at, last + 1)
    _pushed(link)
    store_release(link + Block.PUSH_LOCK.at, 0)
    return last + 1


@compiled("int64(int64,int64)")
def pop(link: int, record: int) -> int:
    """Take a record; return whether there was one."""
    inner = load(link + ChannelWord.IN.at)
    if load_acquire(inner + Word.TAIL) <= load(inner + Word.HEAD):
        return 0
    enter(link + ChannelWord.TAKE_LOCK.at)
    head = load(inner + Word.HEAD)
    got = 0
    record_at = inner + RING + head % SLOTS * RECORD
    if load_acquire(inner + Word.TAIL) > head and is_whole(link, record_at):
        memcpy(record, record_at, RECORD)
        taken(link, inner, head + 1)
        got = 1
    store_release(link + ChannelWord.TAKE_LOCK.at, 0)
    return got
