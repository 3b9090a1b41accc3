"""Puts and signals as messages, compiled: for peers that UCX reaches by TCP alone.

There UCX would emulate puts: who is put to answers each, and where the answer cannot be
sent, as to a peer that has just ended, UCX ends the process. Messages ask for no
answer. They come in their order, since all go by one stream; who sees one that is out
of order has lost the peer.
"""

from __future__ import annotations

from collections.abc import Callable

from numba import types

from stretto.hop.ucx.words import Context, Header, Message, Peer
from stretto.jit.atomics import call_c, compiled, load, store, store_release

__all__ = ["NUMBER", "put", "signal", "took"]

NUMBER = 1
"""Of UCX's numbers of messages, ours."""
_memcpy: Callable[[int, int, int], int] = types.ExternalFunction(
    "memcpy", types.int64(types.int64, types.int64, types.int64)
)
_NUMBER, _HEADER_BYTES = NUMBER, 8 * Header.END
_SEND, _PARAMETERS = 8 * Context.MESSAGE, 8 * Context.MESSAGE_PARAMETERS
_HEADER, _RANK, _NUM_RANKS = (
    8 * Context.HEADER,
    8 * Context.RANK,
    8 * Context.NUM_RANKS,
)
_WINDOW, _PEERS = 8 * Context.WINDOW, 8 * Context.PEERS
_PUT_FROM, _PUT_TO = 8 * Context.PUT_FROM, 8 * Context.PUT_TO
_WORD_FROM, _WORD_TO = 8 * Context.WORD_FROM, 8 * Context.WORD_TO
_END_POINT, _STATUS, _PEER_BYTES = 8 * Peer.END_POINT, 8 * Peer.STATUS, 8 * Peer.END
_SENT, _TAKEN = 8 * Peer.SENT, 8 * Peer.TAKEN
_NTH, _KIND, _OFFSET = 8 * Header.NTH, 8 * Header.KIND, 8 * Header.OFFSET
_VALUE, _SIDE, _WORDS = 8 * Header.VALUE, 8 * Header.SIDE, 8 * Header.WORDS
_A_PUT, _A_SIGNAL = int(Message.PUT), int(Message.SIGNAL)
_IS_AHEAD = 1 << 17
"""UCP_AM_RECV_ATTR_FLAG_RNDV: the data have not come with it. We never ask for that."""
_NONSENSE = -5
"""UCS_ERR_INVALID_PARAM."""


@compiled("int64(int64,int64,int64,int64,int64)")
def _send(context: int, peer: int, kind: int, source: int, nbytes: int) -> int:
    """Send a message whose header's later words are written; return UCX's request."""
    header, nth = context + _HEADER, load(peer + _SENT)
    store(header, load(context + _RANK))
    store(header + _NTH, nth)
    store(header + _KIND, kind)
    store(peer + _SENT, nth + 1)
    return call_c(
        load(context + _SEND),
        load(peer + _END_POINT),
        _NUMBER,
        header,
        _HEADER_BYTES,
        source,
        nbytes,
        load(context + _PARAMETERS),
    )


@compiled("int64(int64,int64,int64,int64,int64)")
def put(context: int, peer: int, source: int, nbytes: int, offset: int) -> int:
    """Send bytes, and where they belong; return UCX's request."""
    store(context + _HEADER + _OFFSET, offset)
    return _send(context, peer, _A_PUT, source, nbytes)


@compiled("int64(int64,int64,int64)")
def signal(context: int, peer: int, arguments: int) -> int:
    """Send what a signal says; return UCX's request."""
    header = context + _HEADER
    store(header + _OFFSET, load(arguments + 16))
    store(header + _VALUE, load(arguments + 24))
    store(header + _SIDE, load(arguments + 32))
    for i in range(3):
        store(header + _WORDS + 8 * i, load(arguments + 40 + 8 * i))
    return _send(context, peer, _A_SIGNAL, 0, 0)


@compiled("int64(int64,int64)")
def _is_word(context: int, offset: int) -> int:
    inside = load(context + _WORD_FROM) <= offset < load(context + _WORD_TO)
    return 1 if inside and offset % 8 == 0 else 0


@compiled("int64(int64,int64)")
def _raised(context: int, header: int) -> int:
    """Do what a signal says; return whether it may."""
    offset, side = load(header + _OFFSET), load(header + _SIDE)
    if not (_is_word(context, offset) and _is_word(context, side)):
        return 0
    if not _is_word(context, side + 16):
        return 0
    base, value = load(context + _WINDOW), load(header + _VALUE)
    for i in range(3):
        store(base + side + 8 * i, load(header + _WORDS + 8 * i))
    if load(base + offset) < value:
        store_release(base + offset, value)
    return 1


@compiled("int64(int64,int64,int64,int64)")
def _landed(context: int, header: int, data: int, nbytes: int) -> int:
    """Store what was put; return whether it may lie there."""
    offset = load(header + _OFFSET)
    if not load(context + _PUT_FROM) <= offset <= load(context + _PUT_TO) - nbytes:
        return 0
    _memcpy(load(context + _WINDOW) + offset, data, nbytes)
    return 1


@compiled("int64(int64,int64,int64,int64,int64,int64)")
def took(
    context: int, header: int, header_bytes: int, data: int, nbytes: int, about: int
) -> int:
    """Take a message: UCX calls it, from `progress`. What is nonsense ends a peer."""
    if header_bytes != _HEADER_BYTES:
        return 0
    rank = load(header)
    if rank < 0 or rank >= load(context + _NUM_RANKS):
        return 0
    peer = load(context + _PEERS) + _PEER_BYTES * rank
    if load(peer + _STATUS):
        return 0
    is_sound = load(header + _NTH) == load(peer + _TAKEN)
    is_sound = is_sound and load(about) & _IS_AHEAD == 0
    if is_sound:
        store(peer + _TAKEN, load(peer + _TAKEN) + 1)
        if load(header + _KIND) == _A_PUT:
            is_sound = _landed(context, header, data, nbytes) != 0
        else:
            is_sound = _raised(context, header) != 0
    if not is_sound:
        store(peer + _STATUS, _NONSENSE)
    return 0
