"""Data that go to a field's pieces, compiled: straight from the socket, or dropped.

Whoever closes a field does so while nobody is in these functions.
"""

from __future__ import annotations

from collections.abc import Callable

from numba import types

from stretto.hop.fields import MOST_BYTES, PIECE_WORDS, Field
from stretto.hop.tcp.words import BUFFER, MOST_PIECES, Context, Link
from stretto.jit.atomics import (
    compiled,
    fence,
    load,
    load_acquire,
    store,
    store_release,
)

__all__ = ["aim", "aimed", "drop", "land", "landed"]

_memcpy: Callable[[int, int, int], int] = types.ExternalFunction(
    "memcpy", types.int64(types.int64, types.int64, types.int64)
)
_recv: Callable[[int, int, int, int], int] = types.ExternalFunction(
    "recv", types.int64(types.int32, types.int64, types.int64, types.int32)
)
_NO_WAIT = 0x40
_FIELDS, _NUM_FIELDS = 8 * Context.FIELDS, 8 * Context.NUM_FIELDS
_SOCKET, _VECTOR, _IN = 8 * Link.SOCKET, 8 * Link.VECTOR, 8 * Link.IN
_TARGET, _LEFT, _ASKED = 8 * Link.TARGET, 8 * Link.LEFT, 8 * Link.ASKED
_FIELD, _GENERATION = 8 * Link.FIELD, 8 * Link.GENERATION
_PIECES, _COUNT, _NBYTES = 8 * Field.PIECES, 8 * Field.COUNT, 8 * Field.NBYTES
_USE, _MARK, _EPOCH = 8 * Field.GENERATION, 8 * Field.MARK, 8 * Field.EPOCH
_WANT, _CANCEL = 8 * Field.WANT, 8 * Field.CANCEL
_LANDED, _DROPPED = 8 * Field.LANDED, 8 * Field.DROPPED
_FIELD_BYTES, _PIECE = 8 * Field.END, 8 * PIECE_WORDS
_INDEX_AT, _USE_AT, _MOST_INDEX, _MOST_USE = 40, 52, 0xFFF, 0x3FF


@compiled("int64(int64,int64,int64,int64)")
def aim(context: int, link: int, offset: int, nbytes: int) -> int:
    """Have the data of a put go to a field; return whether there can be such a put."""
    index = offset >> _INDEX_AT & _MOST_INDEX
    inside = offset & (MOST_BYTES - 1)
    if nbytes < 0 or index >= load(context + _NUM_FIELDS):
        return 0
    field = load(context + _FIELDS) + _FIELD_BYTES * index
    generation = offset >> _USE_AT & _MOST_USE
    is_open = load(field + _PIECES) and load(field + _USE) == generation
    if is_open and nbytes > load(field + _NBYTES) - inside:
        return 0
    store(link + _FIELD, field)
    store(link + _GENERATION, generation)
    store(link + _TARGET, inside)
    store(link + _LEFT, nbytes)
    return 1


@compiled("int64(int64,int64)")
def _held(field: int, generation: int) -> int:
    """Say that bytes are written to a field; return whether they may be."""
    if load(field + _PIECES) == 0 or load(field + _USE) != generation:
        return 0
    cancel, mark = load(field + _CANCEL), load(field + _MARK)
    epoch = load(field + _EPOCH)
    if cancel and load_acquire(cancel):
        return 0
    if mark:
        store(mark, load(field + _WANT))
        fence()
    if epoch and load_acquire(epoch) != load(field + _WANT):
        if mark:
            store_release(mark, 0)
        return 0
    return 1


@compiled("void(int64)")
def _let_go(field: int) -> None:
    mark = load(field + _MARK)
    if mark:
        store_release(mark, 0)


@compiled("int64(int64,int64)")
def _piece_of(field: int, inside: int) -> int:
    """Return the address of the last piece that begins there or before."""
    low, high = 0, load(field + _COUNT)
    pieces = load(field + _PIECES)
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
    field = load(link + _FIELD)
    store(link + _TARGET, load(link + _TARGET) + nbytes)
    store(link + _LEFT, load(link + _LEFT) - nbytes)
    if load(field + _PIECES) and load(field + _USE) == load(link + _GENERATION):
        store(field + _DROPPED, load(field + _DROPPED) + dropped)
        store_release(field + _LANDED, load(field + _LANDED) + nbytes)


@compiled("void(int64,int64,int64)")
def land(link: int, at: int, nbytes: int) -> None:
    """Store data that have come into a buffer where they belong."""
    field, inside = load(link + _FIELD), load(link + _TARGET)
    if nbytes == 0:
        return
    if not _held(field, load(link + _GENERATION)):
        _passed(link, nbytes, nbytes)
        return
    piece, left = _piece_of(field, inside), nbytes
    while left > 0:
        begin = inside - load(piece + 16)
        few = min(left, load(piece + 8) - begin)
        _memcpy(load(piece) + begin, at, few)
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
    field = load(link + _FIELD)
    if not _held(field, load(link + _GENERATION)):
        return 0
    inside, left = load(link + _TARGET), load(link + _LEFT)
    piece, vector = _piece_of(field, inside), link + _VECTOR
    store(link + _ASKED, left)
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
    store(link + _ASKED, load(link + _ASKED) - left)
    if left == 0:
        store(vector + 16 * count, load(link + _IN))
        store(vector + 16 * count + 8, room)
        store(link + _ASKED, load(link + _ASKED) + room)
        count += 1
    return count


@compiled("int64(int64,int64)")
def landed(link: int, got: int) -> int:
    """Let a field go into which so many were received; return the bytes beyond it."""
    _let_go(load(link + _FIELD))
    if got <= 0:
        return 0
    placed = min(got, load(link + _LEFT))
    _passed(link, placed, 0)
    return got - placed


@compiled("int64(int64)")
def drop(link: int) -> int:
    """Receive what nobody wants any more; return how much."""
    most = min(load(link + _LEFT), BUFFER)
    store(link + _ASKED, most)
    got = _recv(load(link + _SOCKET), load(link + _IN), most, _NO_WAIT)
    if got > 0:
        _passed(link, got, got)
    return got
