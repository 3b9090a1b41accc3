"""The interpreter's instructions: what each does with a call's table and memory.

They do not know types or operators: a MOVE names its kernel. What must wait returns
WAITING and has done nothing; it is asked again.

Memory order. A packet's payload and fingerprint are stored before its epoch is
released; a bulk signal is released after the stores it announces. Readers acquire.
Every slot and flag has one writer. A credit releases too: free on x86, cheap on ARM.

Handing over. What a core has written lies in its cache. Another core fetches it from
there: at once where they share a cache, line by line where they do not, and then it is
quicker to write past the caches. Nobody tells which cores those are, and virtual ones
move; so whoever hands something over takes what was quicker by late, and at times tries
the other.

Sleep. A rank says that it sleeps, looks once more, and sleeps; a peer announces, and
then looks whether it sleeps. Between the two, each has a full fence: one of them sees.
"""

from __future__ import annotations

from stretto.executors.cpu.shared.slab import PACKET_HEADER
from stretto.executors.cpu.words import (
    BETWEEN_BYTES,
    COPIES,
    FLAG,
    HANDED,
    PRIVATE,
    Base,
    Common,
    Header,
    Line,
    Status,
)
from stretto.fabric.jit.atomics import call as jump
from stretto.fabric.jit.atomics import (
    call_kernel,
    compiled,
    fence,
    load,
    load_acquire,
    store,
    store_release,
)
from stretto.fabric.jit.builtins import DATA
from stretto.fabric.jit.libc import (
    errno_at,
    now_ns,
    process_vm_readv,
    process_vm_writev,
    read,
    write,
)

__all__ = [
    "arise",
    "bind",
    "cross",
    "lie_down",
    "move",
    "packets",
    "put_far",
    "raise_far",
    "rewind",
    "signal",
    "wait",
]


_OPERANDS, _WORDS = 72, 24
_TRIED_EVERY = 64
"""Once in so many times the way that was slower is tried again."""
_RISE = 8
"""A way may have become slower by that part of its time, each time it is taken: more
was something else that ran."""
_UNREACHABLE = -2
_MOST_AT_ONCE, _GIVEN_AT_ONCE = 1 << 30, 1 << 18
"""The kernel copies less than 2 GB at once. Of what it writes in a peer's arrays less,
for which a peer that leaves its call has to wait."""
_NO_PROCESS, _BAD_ADDRESS = 3, 14
_IN_PAGE, _JUST_BEHIND = 4095, 32


@compiled("int64(int64,int64,int64,int64)")
def _offset(call: int, session: int, memory: int, shared: int) -> int:
    """Return a shared buffer's offset, or PRIVATE, or UNREACHABLE."""
    if not shared:
        return PRIVATE
    at = memory - load(session + Common.HEAP.at)
    return at if 0 <= at < load(session + Common.HEAP_BYTES.at) else _UNREACHABLE


@compiled("void(int64)")
def rewind(call: int) -> None:
    """Set every lane to its first instruction."""
    lanes = load(call + Header.LANES.at)
    for lane in range(load(call + Header.NUM_LANES.at)):
        store(lanes + 16 * lane + 8, load(lanes + 16 * lane))


@compiled("int64(int64,int64,int64)")
def bind(call: int, x: int, out: int) -> int:
    """Bind the table to the caller's memory, and tell peers which call this is."""
    session = load(call + Header.SESSION.at)
    source = load(x + DATA) if load(call + Header.HAS_INPUT.at) else 0
    target = load(out + DATA) if load(call + Header.HAS_OUTPUT.at) else 0
    source_at = _offset(call, session, source, load(call + Header.SHARES_INPUT.at))
    target_at = _offset(call, session, target, load(call + Header.SHARES_OUTPUT.at))
    if source_at == _UNREACHABLE or target_at == _UNREACHABLE:
        return Status.UNREGISTERED
    store(call + Header.INPUT.at, source)
    store(call + Header.OUTPUT.at, target)
    store(call + Header.INPUT_OFFSET.at, source_at)
    store(call + Header.OUTPUT_OFFSET.at, target_at)
    store(call + Header.TILE.at, 0)
    line = load(session + Common.CALL.at)
    # Epoch 0 says that the line is changing: a peer that reads it meanwhile sees no
    # call rather than half of each.
    store_release(line, 0)
    store_release(line + Line.FINGERPRINT.at, load(call + Header.FINGERPRINT.at))
    store(line + Line.INPUT_OFFSET.at, source_at)
    store(line + Line.OUTPUT_OFFSET.at, target_at)
    store(line + Line.INPUT.at, source)
    store(line + Line.OUTPUT.at, target)
    store_release(line, load(session + Common.EPOCH.at))
    rewind(call)
    return Status.DONE


@compiled("void(int64,int64)")
def _wake(session: int, peer: int) -> None:
    """Wake a peer on this host, if it sleeps, after something was announced to it."""
    table = load(session + Common.WAKERS.at)
    if table == 0:
        return
    asleep = load(table + 16 * peer)
    if asleep == 0:
        return
    fence()
    if load(asleep):
        store(asleep, 0)  # one write is enough, whoever else announces something
        number = table + 16 * peer + 8
        write(load(number), number, 8)  # what is added does not matter


@compiled("int64(int64)")
def lie_down(session: int) -> int:
    """Say that this rank sleeps; return whether it had said so when it last looked."""
    if load(session + Common.WAKERS.at) == 0:
        return 1
    asleep = load(session + Common.ASLEEP.at)
    said = load(asleep)
    store(asleep, 1)
    fence()
    return said


@compiled("void(int64)")
def arise(session: int) -> None:
    """Say that this rank is awake, and forget who woke it."""
    if load(session + Common.WAKERS.at):
        asleep = load(session + Common.ASLEEP.at)
        store(asleep, 0)
        read(load(session + Common.WAKE.at), session + Common.CLOCK.at, 8)


@compiled("int64(int64,int64,int64,int64,int64)")
def _operand(at: int, stage: int, source: int, target: int, packet: int) -> int:
    """Return an operand's address."""
    base, value = load(at), load(at + 8)
    if base == Base.STAGE:
        return value + stage
    if base == Base.INPUT:
        return value + source
    if base == Base.OUTPUT:
        return value + target
    return value + packet + PACKET_HEADER


@compiled("int64(int64,int64,int64,int64)")
def packets(call: int, at: int, packet: int, epoch: int) -> int:
    """Return whether a MOVE's packets are there: DONE, WAITING or MISMATCH."""
    srcs = at + _OPERANDS + _WORDS * load(at + 40)
    for _ in range(load(at + 48)):
        if load(srcs) == Base.PACKET:
            slot = load(srcs + 8) + packet
            # Another epoch: an old packet of this parity, two epochs or more ago.
            if load_acquire(slot) != epoch:
                return Status.WAITING
            # Who is in another call writes its own epoch's slots, too: so it is found
            # here, and not in what the sum is.
            if load(slot + 8) != load(call + Header.FINGERPRINT.at):
                return Status.MISMATCH
        srcs += _WORDS
    return Status.DONE


@compiled("void(int64,int64,int64,int64)")
def _hand_over(session: int, at: int, operands: int, nbytes: int) -> None:
    """Run a MOVE's kernel, the quicker one of two, and learn what it took."""
    turn = load(session + Common.HANDED.at) + 1
    store(session + Common.HANDED.at, turn)
    past = load(session + Common.PAST.at) ^ (turn % _TRIED_EVERY == 1)
    clock = session + Common.CLOCK.at
    began = now_ns(clock)
    call_kernel(load(at + 16 + 8 * past), operands, nbytes)
    took = (now_ns(clock) - began) * 4096 // nbytes
    usual = load(session + Common.TOOK.at + 8 * past)
    # A core that was taken away meanwhile must not decide for the next thousand.
    if usual:
        took = min(took, usual + usual // _RISE + 1)
    store(session + Common.TOOK.at + 8 * past, took)
    within = load(session + Common.TOOK.at)
    store(session + Common.PAST.at, load(session + Common.TOOK.at + 8) < within)


@compiled("void(int64,int64,int64,int64,int64,int64,int64)")
def move(
    call: int, at: int, epoch: int, stage: int, source: int, target: int, packet: int
) -> None:
    """Run a MOVE's kernel, then announce the packets it wrote."""
    scratch = load(call + Header.SCRATCH.at)
    dsts, srcs = load(at + 40), load(at + 48)
    operand = at + _OPERANDS
    for i in range(dsts + srcs):
        store(scratch + 8 * i, _operand(operand, stage, source, target, packet))
        operand += _WORDS
    tile_bytes = load(call + Header.TILE_BYTES.at)
    nbytes = min(tile_bytes, load(at + 32) - load(call + Header.TILE.at) * tile_bytes)
    how = load(at + 64)
    if how & COPIES and load(scratch) == load(scratch + 8):
        nbytes = 0  # it is there: to write it would take it from who reads it
    if nbytes > 0 and how & HANDED:
        _hand_over(load(call + Header.SESSION.at), at, scratch, nbytes)
    elif nbytes > 0:
        kernel = load(at + 16)
        if load(at + 24):
            kernel = load(at + 24)
            for i in range(dsts):
                for j in range(dsts, dsts + srcs):
                    if load(scratch + 8 * i) == load(scratch + 8 * j):
                        kernel = load(at + 16)  # in place: it is in the cache
        call_kernel(kernel, scratch, nbytes)
    for i in range(dsts):
        if load(at + _OPERANDS + _WORDS * i) == Base.PACKET:
            slot = load(at + _OPERANDS + _WORDS * i + 8) + packet
            store(slot + 8, load(call + Header.FINGERPRINT.at))
            store_release(slot, epoch)
            _wake(
                load(call + Header.SESSION.at), load(at + _OPERANDS + _WORDS * i + 16)
            )


@compiled("void(int64,int64,int64)")
def signal(call: int, at: int, epoch: int) -> None:
    """Raise a flag in a peer's memory."""
    flag = load(at + 16)
    # What is said beside a flag exists twice, by parity: a peer may still compare the
    # last call's while we are in the next, and nobody is two ahead.
    side = flag + 8 + 24 * (epoch & 1)
    store(side, load(call + Header.FINGERPRINT.at))
    store(side + 8, load(call + Header.INPUT_OFFSET.at))
    store(side + 16, load(call + Header.OUTPUT_OFFSET.at))
    store_release(flag, (epoch << FLAG) + load(at + 24))
    _wake(load(call + Header.SESSION.at), load(at + 32))


@compiled("int64(int64,int64,int64)")
def wait(call: int, at: int, epoch: int) -> int:
    """Return whether a flag is up: DONE, WAITING or MISMATCH."""
    flag = load(at + 16)
    if load_acquire(flag) < (epoch << FLAG) + load(at + 24):
        return Status.WAITING
    side = flag + 8 + 24 * (epoch & 1)
    # Where memory is shared, peers must mean the same place in it: unless one of them
    # is told of no offset, because it works on a copy.
    same = load(side) == load(call + Header.FINGERPRINT.at)
    if load(call + Header.SHARES_INPUT.at):
        theirs = load(side + 8)
        same &= (theirs == PRIVATE) | (theirs == load(call + Header.INPUT_OFFSET.at))
    if load(call + Header.SHARES_OUTPUT.at):
        theirs = load(side + 16)
        same &= (theirs == PRIVATE) | (theirs == load(call + Header.OUTPUT_OFFSET.at))
    return Status.DONE if same else Status.MISMATCH


@compiled("int64(int64,int64,int64,int64,int64)")
def put_far(call: int, at: int, stage: int, source: int, target: int) -> int:
    """Begin a put to another host: DONE, or WAITING for room."""
    session = load(call + Header.SESSION.at)
    tile_bytes = load(call + Header.TILE_BYTES.at)
    nbytes = min(tile_bytes, load(at + 80) - load(call + Header.TILE.at) * tile_bytes)
    if nbytes <= 0:
        return Status.DONE
    store(at + 32, _operand(at + 56, stage, source, target, 0))
    store(at + 40, load(at + 72) + stage)
    store(at + 48, nbytes)
    hop = load(session + Common.HOP.at)
    begun = jump(load(session + Common.HOP_PUT.at), hop, at + 16)
    return Status.DONE if begun else Status.WAITING


@compiled("int64(int64,int64,int64)")
def raise_far(call: int, at: int, epoch: int) -> int:
    """Raise a flag on another host: DONE, or WAITING for room."""
    session = load(call + Header.SESSION.at)
    store(at + 40, (epoch << FLAG) + load(at + 80))
    store(at + 48, load(at + 32) + 8 + 24 * (epoch & 1))
    store(at + 56, load(call + Header.FINGERPRINT.at))
    store(at + 64, load(call + Header.INPUT_OFFSET.at))
    store(at + 72, load(call + Header.OUTPUT_OFFSET.at))
    hop = load(session + Common.HOP.at)
    begun = jump(load(session + Common.HOP_SIGNAL.at), hop, at + 16)
    return Status.DONE if begun else Status.WAITING


@compiled("void(int64,int64,int64,int64,int64)")
def _copy(operands: int, kernel: int, dst: int, src: int, nbytes: int) -> None:
    """Copy within this process, as moves do."""
    store(operands, dst)
    store(operands + 8, src)
    call_kernel(kernel, operands, nbytes)


@compiled("int64(int64,int64,int64,int64,int64,int64)")
def _by_kernel(
    pieces: int, pid: int, ours: int, theirs: int, nbytes: int, gives: int
) -> int:
    """Have the kernel copy between two processes; return how many bytes it did."""
    store(pieces, ours)
    store(pieces + 8, nbytes)
    store(pieces + 16, theirs)
    store(pieces + 24, nbytes)
    if gives:
        return process_vm_writev(pid, pieces, 1, pieces + 16, 1, 0)
    return process_vm_readv(pid, pieces, 1, pieces + 16, 1, 0)


@compiled("int64(int64,int64,int64,int64,int64)")
def cross(call: int, at: int, stage: int, source: int, target: int) -> int:
    """Copy between a peer's memory and ours: DONE, WAITING or UNREACHED.

    Processors that copy by one instruction take six times as long where what is written
    lies in its page just behind what is read: that goes through memory between them.
    A peer that has ended is waited for: who looks around finds out that it has.
    """
    session, peer = load(call + Header.SESSION.at), load(at + 72)
    tile_bytes = load(call + Header.TILE_BYTES.at)
    along = load(call + Header.TILE.at) * tile_bytes
    left = min(tile_bytes, load(at + 56) - along)
    line, pieces = load(at + 16), load(call + Header.SCRATCH.at)
    gives, mine = load(at + 96), load(session + Common.CALL.at)
    theirs = load(line + load(at + 24)) + load(at + 32) + along
    ours = _operand(at + 40, stage, source, target, 0)
    behind = ((theirs - ours) if gives else (ours - theirs)) & _IN_PAGE
    between = 0
    if 0 < behind < _JUST_BEHIND:
        between = load(session + Common.BETWEEN.at) + (theirs & _IN_PAGE)
    while left > 0:
        once = min(left, _GIVEN_AT_ONCE if gives else _MOST_AT_ONCE)
        once = min(once, BETWEEN_BYTES) if between else once
        if between and gives:
            _copy(pieces, load(at + 88), between, ours, once)
        if gives:  # a peer that has left its call, or sees that it is written to, waits
            store(mine + Line.GIVES.at, peer + 1)
            fence()
        pid = load(line + Line.PID.at)
        if gives and (pid == 0 or load_acquire(line) != load(mine)):
            store(mine + Line.GIVES.at, 0)
            return Status.WAITING
        got = _by_kernel(pieces, pid, between or ours, theirs, once, gives)
        if gives:
            store_release(mine + Line.GIVES.at, 0)
        if got <= 0:
            why = load(errno_at()) & 0xFFFFFFFF if got < 0 else _BAD_ADDRESS
            store(at + 80, why)
            return Status.WAITING if why == _NO_PROCESS else Status.UNREACHED
        if between and not gives:
            _copy(pieces, load(at + 88), ours, between, got)
        ours, theirs, left = ours + got, theirs + got, left - got
    return Status.DONE
