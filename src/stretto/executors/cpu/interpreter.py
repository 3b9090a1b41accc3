"""The interpreter: it walks a call's table, compiled by Numba to run without the GIL.

It does not know types or operators: a MOVE names its kernel. It returns when the call
is done, when nothing moved for a while (state is in the table: it resumes), or at a
fault.

Memory order. A packet's payload and fingerprint are stored before its epoch is
released; a bulk signal is released after the stores it announces. Readers acquire.
Every slot and flag has one writer. A credit releases too: free on x86, cheap on ARM.
"""

from __future__ import annotations

import time

from stretto.executors.cpu.slab import PACKET_HEADER, PACKET_REGION, STAGE_REGION
from stretto.executors.cpu.words import (
    FLAG,
    PRIVATE,
    Base,
    Code,
    Header,
    Line,
    SessionWord,
    Status,
)
from stretto.jit.atomics import call as jump
from stretto.jit.atomics import (
    call_kernel,
    clock_gettime,
    compiled,
    load,
    load_acquire,
    pause,
    sched_yield,
    store,
    store_release,
    take,
    thread_ident,
    usleep,
)

__all__ = ["RESUME", "address", "run", "spin"]

RESUME = -1
"""Given for the input: go on with a call that returned WAITING."""

_DATA = object.__basicsize__
"""Where a NumPy array keeps the address of its data: `memory_layout_is_known` tests."""

# Plain integers: Numba freezes them into the code.
_SESSION, _FINGERPRINT = 8 * Header.SESSION, 8 * Header.FINGERPRINT
_TILES, _TILE_BYTES, _TILE = 8 * Header.TILES, 8 * Header.TILE_BYTES, 8 * Header.TILE
_NUM_LANES, _LANES = 8 * Header.NUM_LANES, 8 * Header.LANES
_SCRATCH = 8 * Header.SCRATCH
_HAS_INPUT, _HAS_OUTPUT = 8 * Header.HAS_INPUT, 8 * Header.HAS_OUTPUT
_SHARES_INPUT, _SHARES_OUTPUT = 8 * Header.SHARES_INPUT, 8 * Header.SHARES_OUTPUT
_INPUT, _OUTPUT = 8 * Header.INPUT, 8 * Header.OUTPUT
_INPUT_AT, _OUTPUT_AT = 8 * Header.INPUT_OFFSET, 8 * Header.OUTPUT_OFFSET
_EPOCH, _CALL = 8 * SessionWord.EPOCH, 8 * SessionWord.CALL
_HEAP, _HEAP_BYTES = 8 * SessionWord.HEAP, 8 * SessionWord.HEAP_BYTES
_SPINS, _YIELDS = 8 * SessionWord.SPINS, 8 * SessionWord.YIELDS
_SLEEPS, _SLEEP_US = 8 * SessionWord.SLEEPS, 8 * SessionWord.SLEEP_US
_LONG, _BRIEF = 8 * SessionWord.LONG_SPINS, 8 * SessionWord.BRIEF_SPINS
_MOST_YIELDS, _WARY = 8 * SessionWord.MOST_YIELDS, -1000
_AWAY, _CLOCK = 8 * SessionWord.AWAY_NS, 8 * SessionWord.CLOCK
_INSIDE = 8 * SessionWord.INSIDE
_MONOTONIC = int(getattr(time, "CLOCK_MONOTONIC", 0))
_SWITCHED_NS, _TAKEN_NS = 2_000, 500_000
"""A yield that took longer let another process run; one that took much longer, another
than a peer, who answers and waits again soon."""
_FAR_NAP_US = 500
_PRINT, _FROM_INPUT = 8 * Line.FINGERPRINT, 8 * Line.INPUT_OFFSET
_FROM_OUTPUT = 8 * Line.OUTPUT_OFFSET
_MOVE, _SIGNAL, _WAIT, _END, _PUT, _RAISE = (int(c) for c in Code)
_HOP, _HOP_PUT = 8 * SessionWord.HOP, 8 * SessionWord.HOP_PUT
_HOP_SIGNAL, _HOP_BUSY = 8 * SessionWord.HOP_SIGNAL, 8 * SessionWord.HOP_BUSY
_HOP_PROGRESS, _HOP_WAIT = 8 * SessionWord.HOP_PROGRESS, 8 * SessionWord.HOP_WAIT
_STAGE_BASE, _INPUT_BASE = int(Base.STAGE), int(Base.INPUT)
_OUTPUT_BASE, _PACKET_BASE = int(Base.OUTPUT), int(Base.PACKET)
_DONE, _WAITING, _MISMATCH, _UNREGISTERED, _BUSY = (int(s) for s in Status)
_OPERANDS, _WORDS = 64, 24
_PAYLOAD, _UNREACHABLE = PACKET_HEADER, -2


@compiled("int64(int64)")
def address(array: int) -> int:
    """Return where the data of an array begin, given the array's id()."""
    return load(array + _DATA)


@compiled("void(int64)")
def spin(times: int) -> None:
    """Pause so many times, to be timed."""
    for _ in range(times):
        pause()


@compiled("int64(int64,int64,int64,int64)")
def _offset(call: int, session: int, memory: int, shared: int) -> int:
    """Return a shared buffer's offset, or PRIVATE, or UNREACHABLE."""
    if not shared:
        return PRIVATE
    at = memory - load(session + _HEAP)
    return at if 0 <= at < load(session + _HEAP_BYTES) else _UNREACHABLE


@compiled("void(int64)")
def _rewind(call: int) -> None:
    lanes = load(call + _LANES)
    for lane in range(load(call + _NUM_LANES)):
        store(lanes + 16 * lane + 8, load(lanes + 16 * lane))


@compiled("int64(int64,int64,int64)")
def _begin(call: int, x: int, out: int) -> int:
    """Bind the table to the caller's memory, and tell peers which call this is."""
    session = load(call + _SESSION)
    source = load(x + _DATA) if load(call + _HAS_INPUT) else 0
    target = load(out + _DATA) if load(call + _HAS_OUTPUT) else 0
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
    _rewind(call)
    return _DONE


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
def _packets(call: int, at: int, packet: int, epoch: int) -> int:
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
def _move(
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


@compiled("void(int64,int64,int64)")
def _signal(call: int, at: int, epoch: int) -> None:
    """Raise a flag in a peer's memory."""
    flag = load(at + 16)
    side = flag + 8 + 24 * (epoch & 1)
    store(side, load(call + _FINGERPRINT))
    store(side + 8, load(call + _INPUT_AT))
    store(side + 16, load(call + _OUTPUT_AT))
    store_release(flag, (epoch << FLAG) + load(at + 24))


@compiled("int64(int64,int64,int64)")
def _wait(call: int, at: int, epoch: int) -> int:
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
def _put(call: int, at: int, stage: int, source: int, target: int) -> int:
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
def _raise(call: int, at: int, epoch: int) -> int:
    """Raise a flag on another host: DONE, or WAITING for room."""
    session = load(call + _SESSION)
    store(at + 40, (epoch << FLAG) + load(at + 80))
    store(at + 48, load(at + 32) + 8 + 24 * (epoch & 1))
    store(at + 56, load(call + _FINGERPRINT))
    store(at + 64, load(call + _INPUT_AT))
    store(at + 72, load(call + _OUTPUT_AT))
    begun = jump(load(session + _HOP_SIGNAL), load(session + _HOP), at + 16)
    return _DONE if begun else _WAITING


@compiled("int64(int64,int64)")
def _lane(call: int, lane: int) -> int:
    """Run a lane until its end, or until it must wait: DONE, WAITING or MISMATCH.

    Where it is stays in the table.
    """
    session = load(call + _SESSION)
    epoch = load(session + _EPOCH)
    stage = STAGE_REGION * (epoch & 1)
    packet = PACKET_REGION * (epoch & 1)
    along = load(call + _TILE) * load(call + _TILE_BYTES)
    source = load(call + _INPUT) + along
    target = load(call + _OUTPUT) + along
    status = _DONE
    at = load(lane + 8)
    while True:
        code = load(at)
        if code == _MOVE:
            status = _packets(call, at, packet, epoch)
            if status != _DONE:
                break
            _move(call, at, epoch, stage, source, target, packet)
        elif code == _SIGNAL:
            _signal(call, at, epoch)
        elif code == _WAIT:
            status = _wait(call, at, epoch)
            if status != _DONE:
                break
        elif code == _PUT:
            status = _put(call, at, stage, source, target)
            if status != _DONE:
                break
        elif code == _RAISE:
            status = _raise(call, at, epoch)
            if status != _DONE:
                break
        else:
            break
        at = load(at + 8)
    store(lane + 8, at)
    return status


@compiled("int64(int64)")
def _now_ns(session: int) -> int:
    clock_gettime(_MONOTONIC, session + _CLOCK)
    return load(session + _CLOCK) * 1_000_000_000 + load(session + _CLOCK + 8)


@compiled("void(int64,int64)")
def _learn(session: int, idle: int) -> None:
    """Spin briefly while a peer runs on this core: it cannot answer while we spin.

    Called when something moved at last. If that was right after a yield in which
    somebody else ran, for as long as an answer takes, it was the peer.
    """
    yields, most = load(session + _YIELDS), load(session + _MOST_YIELDS)
    if yields < most:  # the stranger may have gone
        spun = idle <= load(session + _SPINS)
        store(session + _YIELDS, min(yields + (1 if spun else 5), most))
    away = load(session + _AWAY)
    if away > 0:
        store(session + _AWAY, 0)
        here = _SWITCHED_NS < away < _TAKEN_NS
        store(session + _SPINS, load(session + (_BRIEF if here else _LONG)))


@compiled("int64(int64,int64,int64)")
def _relax(session: int, idle: int, far: int) -> int:
    """Wait a little, longer the longer nothing moved; return whether to look around.

    `far`: only for other hosts, whose word wakes who sleeps.
    """
    spins = load(session + _SPINS)
    yields = spins + max(load(session + _YIELDS), 0)
    if idle < spins:
        pause()
    elif idle < yields:
        began = _now_ns(session)
        sched_yield()
        away = _now_ns(session) - began
        store(session + _AWAY, away)
        alone = load(session + _LONG) > load(session + _BRIEF)  # a core for each rank
        if away > _TAKEN_NS and alone:  # a stranger: who sleeps is put before it
            store(session + _YIELDS, _WARY)
    else:
        store(session + _AWAY, 0)
        if load(session + _HOP):
            hop_wait, nap_us = load(session + _HOP_WAIT), load(session + _SLEEP_US)
            jump(hop_wait, load(session + _HOP), max(nap_us, far * _FAR_NAP_US))
        else:
            usleep(load(session + _SLEEP_US))
    return idle >= yields + load(session + _SLEEPS)


@compiled("int64(int64,int64,int64)")
def run(call: int, x: int, out: int) -> int:
    """Run a call on two arrays, given by id(); return a `Status`.

    One thread is inside from the start of a call to its end, however it resumes.
    """
    session = load(call + _SESSION)
    idle = 0
    if x == RESUME:
        idle = load(session + _SPINS) + max(load(session + _YIELDS), 0)
    elif not take(session + _INSIDE, thread_ident()):
        return _BUSY
    elif _begin(call, x, out) != _DONE:
        store_release(session + _INSIDE, 0)
        return _UNREGISTERED
    lanes, num_lanes = load(call + _LANES), load(call + _NUM_LANES)
    tiles, hop = load(call + _TILES), load(session + _HOP)
    while load(call + _TILE) < tiles:
        waiting = moved = False
        far = 1
        for lane in range(lanes, lanes + 16 * num_lanes, 16):
            before = load(lane + 8)
            status = _lane(call, lane)
            if status == _MISMATCH:
                return _MISMATCH
            if status == _WAITING:
                waiting = True
                at = load(lane + 8)
                far &= (load(at) == _WAIT) & load(at + 48)
            moved |= load(lane + 8) != before
        if waiting and hop:
            moved |= jump(load(session + _HOP_PROGRESS), hop, 0) > 0
        if moved:
            if idle > 0:
                _learn(session, idle)
            idle = 0
        if waiting:
            idle += 1
            if _relax(session, idle, far):
                return _WAITING
        else:
            store(session + _EPOCH, load(session + _EPOCH) + 1)
            store(call + _TILE, load(call + _TILE) + 1)
            _rewind(call)
    while hop and jump(load(session + _HOP_BUSY), hop, 0):
        if jump(load(session + _HOP_PROGRESS), hop, 0) > 0:
            idle = 0
        idle += 1
        if _relax(session, idle, 1):
            return _WAITING  # sources are the caller's again when they are sent
    store_release(session + _INSIDE, 0)
    return _DONE
