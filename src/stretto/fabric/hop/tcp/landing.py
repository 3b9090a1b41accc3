"""Data that go to a field's pieces, compiled: straight from the socket, or dropped.

Whoever closes a field does so while nobody is in these functions.
"""

from __future__ import annotations

from stretto.fabric.hop.fields import MOST_BYTES, PIECE_WORDS, Field
from stretto.fabric.hop.tcp.words import BUFFER, MOST_PIECES, Context, Link
from stretto.fabric.jit.atomics import (
    compiled,
    fence,
    load,
    load_acquire,
    store,
    store_release,
)
from stretto.fabric.jit.libc import NO_WAIT, memcpy, recv

_PIECE = 8 * PIECE_WORDS
_INDEX_AT, _USE_AT, _MOST_INDEX, _MOST_USE = 40, 52, 0xFFF, 0x3FF


@compiled("int64(int64,int64,int64,int64)")
def aim(context: int, link: int, offset: int, nbytes: int) -> int:
    """Have the data of a put go to a field; return whether there can be such a put."""
    index = offset >> _INDEX_AT & _MOST_INDEX
    inside = offset & (MOST_BYTES - 1)
    if nbytes < 0 or index >= load(context + Context.NUM_FIELDS.at):
        return 0
    field = load(context + Context.FIELDS.at) + Field.END.at * index
    generation = offset >> _USE_AT & _MOST_USE
    use = load(field + Field.GENERATION.at)
    # A field that has been closed, or used again, is no fault of the peer: what comes
    # for it late is read, and dropped.
    is_open = load(field + Field.PIECES.at) and use == generation
    if is_open and nbytes > load(field + Field.NBYTES.at) - inside:
        return 0
    store(link + Link.FIELD.at, field)
    store(link + Link.GENERATION.at, generation)
    store(link + Link.TARGET.at, inside)
    store(link + Link.LEFT.at, nbytes)
    return 1


@compiled("int64(int64,int64)")
def _held(field: int, generation: int) -> int:
    """Say that bytes are written to a field; return whether they may be."""
    use = load(field + Field.GENERATION.at)
    if load(field + Field.PIECES.at) == 0 or use != generation:
        return 0
    cancel, mark = load(field + Field.CANCEL.at), load(field + Field.MARK.at)
    epoch = load(field + Field.EPOCH.at)
    if cancel and load_acquire(cancel):
        return 0
    # First say that we write, then look at the epoch: whoever ends it stores the new
    # epoch first and looks at marks then. One of the two sees the other.
    if mark:
        store(mark, load(field + Field.WANT.at))
        fence()
    if epoch and load_acquire(epoch) != load(field + Field.WANT.at):
        if mark:
            store_release(mark, 0)
        return 0
    return 1


@compiled("void(int64)")
def _let_go(field: int) -> None:
    mark = load(field + Field.MARK.at)
    if mark:
        store_release(mark, 0)


@compiled("int64(int64,int64)")
def _piece_of(field: int, inside: int) -> int:
    """Return the address of the last piece that begins there or before."""
    low, high = 0, load(field + Field.COUNT.at)
    pieces = load(field + Field.PIECES.at)
    while high - low > 1:
        middle = (low + high) // 2
        if load(pieces + _PIECE * middle + 16) <= inside:
            low = middle
        else:
            high = middle
    return pieces + _PIECE * low


@compiled("void(int64,int64,int64)")
def _passed(link: int, nbytes: int, dropped: int) -> None:
    """Note that so many bytes have come, and how many of them were dropped."""
    field = load(link + Link.FIELD.at)
    store(link + Link.TARGET.at, load(link + Link.TARGET.at) + nbytes)
    store(link + Link.LEFT.at, load(link + Link.LEFT.at) - nbytes)
    use = load(link + Link.GENERATION.at)
    # Only its present use counts bytes: late ones of an earlier use would announce what
    # has not come.
    if load(field + Field.PIECES.at) and load(field + Field.GENERATION.at) == use:
        store(field + Field.DROPPED.at, load(field + Field.DROPPED.at) + dropped)
        # Released after the bytes: who sees the count may read them.
        store_release(field + Field.LANDED.at, load(field + Field.LANDED.at) + nbytes)


@compiled("void(int64,int64,int64)")
def land(link: int, at: int, nbytes: int) -> None:
    """Store data that have come into a buffer where they belong."""
    field, inside = load(link + Link.FIELD.at), load(link + Link.TARGET.at)
    if nbytes == 0:
        return
    if not _held(field, load(link + Link.GENERATION.at)):
        _passed(link, nbytes, nbytes)
        return
    piece, left = _piece_of(field, inside), nbytes
    while left > 0:
        begin = inside - load(piece + 16)
        few = min(left, load(piece + 8) - begin)
        memcpy(load(piece) + begin, at, few)
        at += few
        inside += few
        left -= few
        piece += _PIECE
    _let_go(field)
    _passed(link, nbytes, 0)


@compiled("int64(int64,int64)")
def aimed(link: int, room: int) -> int:
    """List where to receive; return how many pieces, or 0: it has to be dropped.

    The last is the connection's buffer, where all that is expected has a place before.
    Until `landed` the field is held.
    """
    field = load(link + Link.FIELD.at)
    if not _held(field, load(link + Link.GENERATION.at)):
        return 0
    inside, left = load(link + Link.TARGET.at), load(link + Link.LEFT.at)
    piece, vector = _piece_of(field, inside), link + Link.VECTOR.at
    store(link + Link.ASKED.at, left)
    count = 0
    while left > 0 and count < MOST_PIECES:
        begin = inside - load(piece + 16)
        few = min(left, load(piece + 8) - begin)
        store(vector + 16 * count, load(piece) + begin)
        store(vector + 16 * count + 8, few)
        inside += few
        left -= few
        piece += _PIECE
        count += 1
    # More pieces than one call takes: less is asked for, and the next call goes on.
    store(link + Link.ASKED.at, load(link + Link.ASKED.at) - left)
    if left == 0:
        store(vector + 16 * count, load(link + Link.IN.at))
        store(vector + 16 * count + 8, room)
        store(link + Link.ASKED.at, load(link + Link.ASKED.at) + room)
        count += 1
    return count


@compiled("int64(int64,int64)")
def landed(link: int, got: int) -> int:
    """Let a field go into which so many were received; return the bytes beyond it."""
    _let_go(load(link + Link.FIELD.at))
    if got <= 0:
        return 0
    placed = min(got, load(link + Link.LEFT.at))
    _passed(link, placed, 0)
    return got - placed


@compiled("int64(int64)")
def drop(link: int) -> int:
    """Receive what nobody wants any more; return how much."""
    most = min(load(link + Link.LEFT.at), BUFFER)
    store(link + Link.ASKED.at, most)
    got = recv(load(link + Link.SOCKET.at), load(link + Link.IN.at), most, NO_WAIT)
    if got > 0:
        _passed(link, got, got)
    return got
