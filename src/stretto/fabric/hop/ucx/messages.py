"""Puts and signals as messages, compiled: for peers that UCX reaches by TCP alone.

There UCX would emulate puts: who is put to answers each, and where the answer cannot be
sent, as to a peer that has just ended, UCX ends the process. Messages ask for no
answer. They come in their order, since all go by one stream; who sees one that is out
of order has lost the peer.
"""

from __future__ import annotations

from stretto.fabric.hop.base import SignalCall
from stretto.fabric.hop.inside import may_put, raised
from stretto.fabric.hop.ucx.words import Context, MessageHeader, MessageKind, PeerWord
from stretto.fabric.jit.atomics import call_c, compiled, load, store
from stretto.fabric.jit.libc import memcpy

NUMBER = 1
"""Of UCX's numbers of messages, ours."""
_IS_AHEAD = 1 << 17
"""UCP_AM_RECV_ATTR_FLAG_RNDV: the data have not come with it. We never ask for that."""
_NONSENSE = -5
"""UCS_ERR_INVALID_PARAM."""


@compiled("int64(int64,int64,int64,int64,int64)")
def _send(context: int, peer: int, kind: int, source: int, nbytes: int) -> int:
    """Send a message whose header's later words are written; return UCX's request."""
    header, nth = context + Context.HEADER.at, load(peer + PeerWord.SENT.at)
    store(header, load(context + Context.RANK.at))
    store(header + MessageHeader.NTH.at, nth)
    store(header + MessageHeader.KIND.at, kind)
    # Counted although it may fail: a peer that misses a number ends the connection,
    # instead of taking what follows for it.
    store(peer + PeerWord.SENT.at, nth + 1)
    return call_c(
        load(context + Context.MESSAGE.at),
        load(peer + PeerWord.END_POINT.at),
        NUMBER,
        header,
        MessageHeader.END.at,
        source,
        nbytes,
        load(context + Context.MESSAGE_PARAMETERS.at),
    )


@compiled("int64(int64,int64,int64,int64,int64)")
def put(context: int, peer: int, source: int, nbytes: int, offset: int) -> int:
    """Send bytes, and where they belong; return UCX's request."""
    store(context + Context.HEADER.at + MessageHeader.OFFSET.at, offset)
    return _send(context, peer, MessageKind.PUT, source, nbytes)


@compiled("int64(int64,int64,int64)")
def signal(context: int, peer: int, arguments: int) -> int:
    """Send what a signal says; return UCX's request."""
    header = context + Context.HEADER.at
    store(header + MessageHeader.OFFSET.at, load(arguments + SignalCall.OFFSET.at))
    store(header + MessageHeader.VALUE.at, load(arguments + SignalCall.VALUE.at))
    store(header + MessageHeader.SIDE.at, load(arguments + SignalCall.SIDE.at))
    for i in range(3):
        store(
            header + MessageHeader.WORDS.at + 8 * i,
            load(arguments + SignalCall.WORDS.at + 8 * i),
        )
    return _send(context, peer, MessageKind.SIGNAL, 0, 0)


@compiled("int64(int64,int64,int64,int64)")
def _landed(context: int, header: int, data: int, nbytes: int) -> int:
    """Store what was put; return whether it may lie there."""
    offset = load(header + MessageHeader.OFFSET.at)
    if not may_put(context + Context.WINDOW.at, offset, nbytes):
        return 0
    memcpy(load(context + Context.WINDOW.at) + offset, data, nbytes)
    return 1


@compiled("int64(int64,int64,int64,int64,int64,int64)")
def took(
    context: int, header: int, header_bytes: int, data: int, nbytes: int, about: int
) -> int:
    """Take a message: UCX calls it, from `progress`. What is nonsense ends a peer."""
    # Whoever sends something else is not ours: there is no peer to end.
    if header_bytes != MessageHeader.END.at:
        return 0
    rank = load(header)
    if rank < 0 or rank >= load(context + Context.NUM_RANKS.at):
        return 0
    peer = load(context + Context.PEERS.at) + PeerWord.END.at * rank
    if load(peer + PeerWord.STATUS.at):
        return 0
    # UCX keeps the order on one stream; where it does not, an announcement may have
    # overtaken its bytes.
    is_sound = load(header + MessageHeader.NTH.at) == load(peer + PeerWord.TAKEN.at)
    is_sound = is_sound and load(about) & _IS_AHEAD == 0
    if is_sound:
        store(peer + PeerWord.TAKEN.at, load(peer + PeerWord.TAKEN.at) + 1)
        if load(header + MessageHeader.KIND.at) == MessageKind.PUT:
            is_sound = _landed(context, header, data, nbytes) != 0
        else:
            said = header + MessageHeader.OFFSET.at
            is_sound = raised(context + Context.WINDOW.at, said) != 0
    if not is_sound:
        store(peer + PeerWord.STATUS.at, _NONSENSE)
    return 0
