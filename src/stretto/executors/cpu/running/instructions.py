"""The interpreter's instructions: what each does with a call's table and memory.

They do not know types or operators: a MOVE names its kernel. What must wait returns
WAITING and has done nothing; it is asked again.

Memory order. A packet's payload and fingerprint are stored before its epoch is
released; a bulk signal is released after the stores it announces. Readers acquire.
Every slot and flag has one writer. A credit releases too: free on x86, cheap on ARM.

Sleep. A rank says that it sleeps, looks once more, and sleeps; a peer announces, and
then looks whether it sleeps. Between the two, each has a full fence: one of them sees.
"""

from __future__ import annotations

from collections.abc import Callable

from numba import types

from stretto.executors.cpu.shared.slab import PACKET_HEADER
from stretto.executors.cpu.words import (
    FLAG,
    PRIVATE,
    Base,
    Header,
    Line,
    SessionWord,
    Status,
)
from stretto.jit.atomics import call as jump
from stretto.jit.atomics import (
    call_kernel,
    compiled,
    fence,
    load,
    load_acquire,
    store,
    store_release,
)
from stretto.jit.builtins import DATA

__all__ = [
    "arise",
    "bind",
    "lie_down",
    "move",
    "packets",
    "put_far",
    "raise_far",
    "rewind",
    "signal",
    "wait",
]

_read: Callable[[int, int, int], int] = types.ExternalFunction(
    "read", types.int64(types.int32, types.int64, types.int64)
)
_write: Callable[[int, int, int], int] = types.ExternalFunction(
    "write", types.int64(types.int32, types.int64, types.int64)
)

# Plain integers: Numba freezes them into the code.
_SESSION, _FINGERPRINT = 8 * Header.SESSION, 8 * Header.FINGERPRINT
_TILE_BYTES, _TILE = 8 * Header.TILE_BYTES, 8 * Header.TILE
_NUM_LANES, _LANES = 8 * Header.NUM_LANES, 8 * Header.LANES
_SCRATCH = 8 * Header.SCRATCH
_HAS_INPUT, _HAS_OUTPUT = 8 * Header.HAS_INPUT, 8 * Header.HAS_OUTPUT
_SHARES_INPUT, _SHARES_OUTPUT = 8 * Header.SHARES_INPUT, 8 * Header.SHARES_OUTPUT
_INPUT, _OUTPUT = 8 * Header.INPUT, 8 * Header.OUTPUT
_INPUT_AT, _OUTPUT_AT = 8 * Header.INPUT_OFFSET, 8 * Header.OUTPUT_OFFSET
_EPOCH, _CALL = 8 * SessionWord.EPOCH, 8 * SessionWord.CALL
_HEAP, _HEAP_BYTES = 8 * SessionWord.HEAP, 8 * SessionWord.HEAP_BYTES
_PRINT, _FROM_INPUT = 8 * Line.FINGERPRINT, 8 * Line.INPUT_OFFSET
_FROM_OUTPUT = 8 * Line.OUTPUT_OFFSET
_HOP, _HOP_PUT = 8 * SessionWord.HOP, 8 * SessionWord.HOP_PUT
_HOP_SIGNAL = 8 * SessionWord.HOP_SIGNAL
_CLOCK = 8 * SessionWord.CLOCK
_ASLEEP, _WAKE = 8 * SessionWord.ASLEEP, 8 * SessionWord.WAKE
_WAKERS = 8 * SessionWord.WAKERS
_STAGE_BASE, _INPUT_BASE = int(Base.STAGE), int(Base.INPUT)
_OUTPUT_BASE, _PACKET_BASE = int(Base.OUTPUT), int(Base.PACKET)
_DONE, _WAITING, _MISMATCH, _UNREGISTERED, _ = (int(s) for s in Status)
_OPERANDS, _WORDS = 64, 24
_PAYLOAD, _UNREACHABLE = PACKET_HEADER, -2


@compiled("int64(int64,int64,int64,int64)")
def _offset(call: int, session: int, memory: int, shared: int) -> int:
    """Return a shared buffer's offset, or PRIVATE, or UNREACHABLE."""
    if not shared:
        return PRIVATE
    at = memory - load(session + _HEAP)
    return at if 0 <= at < load(session + _HEAP_BYTES) else _UNREACHABLE


@compiled("void(int64)")
def rewind(call: int) -> None:
    """Set every lane to its first instruction."""
    lanes = load(call + _LANES)
    for lane in range(load(call + _NUM_LANES)):
        store(lanes + 16 * lane + 8, load(lanes + 16 * lane))


@compiled("int64(int64,int64,int64)")
def bind(call: int, x: int, out: int) -> int:
    """Bind the table to the caller's memory, and tell peers which call this is."""
    session = load(call + _SESSION)
    source = load(x + DATA) if load(call + _HAS_INPUT) else 0
    target = load(out + DATA) if load(call + _HAS_OUTPUT) else 0
    source_at = _offset(call, session, source, load(call + _SHARES_INPUT))
    target_at = _offset(call, session, target, load(call + _SHARES_OUTPUT))
    if source_at == _UNREACHABLE or target_at == _UNREACHABLE:
        return _UNREGISTERED
    store(call + _INPUT, source)
    store(call + _OUTPUT, target)
    store(call + _INPUT_AT, source_at)
    store(call + _OUTPUT_AT, target_at)
    store(call + _TILE, 0)
    line = load(session + _CALL)
    store_release(line, 0)
    store_release(line + _PRINT, load(call + _FINGERPRINT))
    store(line + _FROM_INPUT, source_at)
    store(line + _FROM_OUTPUT, target_at)
    store_release(line, load(session + _EPOCH))
    rewind(call)
    return _DONE


@compiled("void(int64,int64)")
def _wake(session: int, peer: int) -> None:
    """Wake a peer on this host, if it sleeps, after something was announced to it."""
    table = load(session + _WAKERS)
    if table == 0:
        return
    asleep = load(table + 16 * peer)
    if asleep == 0:
        return
    fence()
    if load(asleep):
        store(asleep, 0)
        number = table + 16 * peer + 8
        _write(load(number), number, 8)  # what is added does not matter


@compiled("int64(int64)")
def lie_down(session: int) -> int:
    """Say that this rank sleeps; return whether it had said so when it last looked."""
    if load(session + _WAKERS) == 0:
        return 1
    asleep = load(session + _ASLEEP)
    said = load(asleep)
    store(asleep, 1)
    fence()
    return said


@compiled("void(int64)")
def arise(session: int) -> None:
    """Say that this rank is awake, and forget who woke it."""
    if load(session + _WAKERS):
        asleep = load(session + _ASLEEP)
        store(asleep, 0)
        _read(load(session + _WAKE), session + _CLOCK, 8)


@compiled("int64(int64,int64,int64,int64,int64)")
def _operand(at: int, stage: int, source: int, target: int, packet: int) -> int:
    """Return an operand's address."""
    base, value = load(at), load(at + 8)
    if base == _STAGE_BASE:
        return value + stage
    if base == _INPUT_BASE:
        return value + source
    if base == _OUTPUT_BASE:
        return value + target
    return value + packet + _PAYLOAD


@compiled("int64(int64,int64,int64,int64)")
def packets(call: int, at: int, packet: int, epoch: int) -> int:
    """Return whether a MOVE's packets are there: DONE, WAITING or MISMATCH."""
    srcs = at + _OPERANDS + _WORDS * load(at + 40)
    for _ in range(load(at + 48)):
        if load(srcs) == _PACKET_BASE:
            slot = load(srcs + 8) + packet
            if load_acquire(slot) != epoch:
                return _WAITING
            if load(slot + 8) != load(call + _FINGERPRINT):
                return _MISMATCH
        srcs += _WORDS
    return _DONE


@compiled("void(int64,int64,int64,int64,int64,int64,int64)")
def move(
    call: int, at: int, epoch: int, stage: int, source: int, target: int, packet: int
) -> None:
    """Run a MOVE's kernel, then announce the packets it wrote."""
    scratch = load(call + _SCRATCH)
    dsts, srcs = load(at + 40), load(at + 48)
    operand = at + _OPERANDS
    for i in range(dsts + srcs):
        store(scratch + 8 * i, _operand(operand, stage, source, target, packet))
        operand += _WORDS
    tile_bytes = load(call + _TILE_BYTES)
    nbytes = min(tile_bytes, load(at + 32) - load(call + _TILE) * tile_bytes)
    if nbytes > 0:
        kernel = load(at + 16)
        if load(at + 24):
            kernel = load(at + 24)
            for i in range(dsts):
                for j in range(dsts, dsts + srcs):
                    if load(scratch + 8 * i) == load(scratch + 8 * j):
                        kernel = load(at + 16)  # in place: it is in the cache
        call_kernel(kernel, scratch, nbytes)
    for i in range(dsts):
        if load(at + _OPERANDS + _WORDS * i) == _PACKET_BASE:
            slot = load(at + _OPERANDS + _WORDS * i + 8) + packet
            store(slot + 8, load(call + _FINGERPRINT))
            store_release(slot, epoch)
            _wake(load(call + _SESSION), load(at + _OPERANDS + _WORDS * i + 16))


@compiled("void(int64,int64,int64)")
def signal(call: int, at: int, epoch: int) -> None:
    """Raise a flag in a peer's memory."""
    flag = load(at + 16)
    side = flag + 8 + 24 * (epoch & 1)
    store(side, load(call + _FINGERPRINT))
    store(side + 8, load(call + _INPUT_AT))
    store(side + 16, load(call + _OUTPUT_AT))
    store_release(flag, (epoch << FLAG) + load(at + 24))
    _wake(load(call + _SESSION), load(at + 32))


@compiled("int64(int64,int64,int64)")
def wait(call: int, at: int, epoch: int) -> int:
    """Return whether a flag is up: DONE, WAITING or MISMATCH."""
    flag = load(at + 16)
    if load_acquire(flag) < (epoch << FLAG) + load(at + 24):
        return _WAITING
    side = flag + 8 + 24 * (epoch & 1)
    same = load(side) == load(call + _FINGERPRINT)
    if load(call + _SHARES_INPUT):
        theirs = load(side + 8)
        same &= (theirs == PRIVATE) | (theirs == load(call + _INPUT_AT))
    if load(call + _SHARES_OUTPUT):
        theirs = load(side + 16)
        same &= (theirs == PRIVATE) | (theirs == load(call + _OUTPUT_AT))
    return _DONE if same else _MISMATCH


@compiled("int64(int64,int64,int64,int64,int64)")
def put_far(call: int, at: int, stage: int, source: int, target: int) -> int:
    """Begin a put to another host: DONE, or WAITING for room."""
    session = load(call + _SESSION)
    tile_bytes = load(call + _TILE_BYTES)
    nbytes = min(tile_bytes, load(at + 80) - load(call + _TILE) * tile_bytes)
    if nbytes <= 0:
        return _DONE
    store(at + 32, _operand(at + 56, stage, source, target, 0))
    store(at + 40, load(at + 72) + stage)
    store(at + 48, nbytes)
    begun = jump(load(session + _HOP_PUT), load(session + _HOP), at + 16)
    return _DONE if begun else _WAITING


@compiled("int64(int64,int64,int64)")
def raise_far(call: int, at: int, epoch: int) -> int:
    """Raise a flag on another host: DONE, or WAITING for room."""
    session = load(call + _SESSION)
    store(at + 40, (epoch << FLAG) + load(at + 80))
    store(at + 48, load(at + 32) + 8 + 24 * (epoch & 1))
    store(at + 56, load(call + _FINGERPRINT))
    store(at + 64, load(call + _INPUT_AT))
    store(at + 72, load(call + _OUTPUT_AT))
    begun = jump(load(session + _HOP_SIGNAL), load(session + _HOP), at + 16)
    return _DONE if begun else _WAITING
