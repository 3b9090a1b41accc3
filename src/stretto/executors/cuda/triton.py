"""Channels for Triton: the operations of `channel.cuh` as functions of a `@triton.jit`.

    from stretto.executors.cuda import triton as st

    @triton.jit
    def kernel(table, ...):  # table: channels.pointer, an integer
        peer = st.channel(table, q, RANKS)
        st.signal(peer)
        ok = st.wait(peer)

One program is one block: it uses the channels of its number along axis 0. Every thread
of a program calls every operation; what must happen once, thread 0 does. Addresses are
64-bit integers; `.to(tl.pointer_type(tl.float32))` makes pointers of them. Words,
epochs, deadlines and the error record are those of `channel.cuh`, so a kernel in Triton
and one in CUDA C++ may talk to each other.
"""

# mypy: disable-error-code="no-untyped-call, untyped-decorator"

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from stretto.errors import MissingExtraError
from stretto.executors.cuda.words import (
    AWAITED,
    CHANNEL,
    KINDS,
    MAX_RANKS,
    PARAMS,
    RECORD,
)

try:
    import triton
    import triton.language as tl
except ModuleNotFoundError as e:
    raise MissingExtraError(
        "channels for Triton need triton, which comes with torch for GPUs: "
        "pip install triton"
    ) from e


def _at(layout: np.dtype[Any], fields: str) -> Iterator[tl.constexpr]:
    """Yield where fields lie: a jit function may use constants, and no table."""
    offsets: Any = layout.fields
    return (tl.constexpr(offsets[field][1]) for field in fields.split())


_SIZE, _MAX_RANKS = tl.constexpr(CHANNEL.itemsize), tl.constexpr(MAX_RANKS)
_REMOTE, _INBOX, _OUTBOX, _COUNTS, _CALLS = _at(
    CHANNEL, "remote inbox outbox counts calls"
)
_HOME, _RANK, _PEER = _at(CHANNEL, "home rank peer")
_CONTROL, _RECORD, _DEADLINE, _NAME = _at(
    PARAMS, "control record deadline_ns fingerprint"
)
_WHY, _WHO, _BLOCK, _LANE, _THREAD = _at(RECORD, "kind rank block lane thread")
_STEP, _WHOM, _ABSENT, _DIFFER, _MARK = _at(
    RECORD, "step peer absent differ fingerprint"
)
_WHAT, _EPOCH, _GOT, _WANT, _LAUNCH = _at(RECORD, "channel epoch got want launch")
_TIMEOUT, _TOLD = (tl.constexpr(KINDS.index(kind)) for kind in ("timeout", "told"))
_SIGNAL, _PACKET = (
    tl.constexpr(list(AWAITED).index(what)) for what in ("A_SIGNAL", "A_PACKET")
)
_CLAIM = tl.constexpr(-(1 << 63) | 1 << 48)
"""deadline.cuh: broken_value, without the ranks."""

# The instructions: of thread 0 alone, then of every element.
_SIGNALLING = tl.constexpr(
    """
    {
        .reg .pred first;
        .reg .b32 thread;
        .reg .b64 n;
        mov.u32 thread, %tid.x;
        setp.eq.u32 first, thread, 0;
        @first ld.global.u64 n, [$2];
        @first add.u64 n, n, 1;
        @first st.global.u64 [$2], n;
        @first st.release.sys.global.u64 [$1], n;
        mov.b32 $0, 0;
    }
    """
)
_WAITING = tl.constexpr(
    """
    {
        .reg .pred p;
        .reg .b32 k;
        .reg .b64 v, since, now;
        mov.b32 $0, 0;
        mov.u32 k, %tid.x;
        setp.ne.u32 p, k, 0;
        @p bra DONE;
        mov.u64 since, %globaltimer;
    POLL:
        ld.relaxed.sys.global.u64 v, [$1];
        setp.ge.u64 p, v, $3;
        @p bra CAME;
        add.u32 k, k, 1;
        and.b32 $0, k, 127;
        setp.ne.u32 p, $0, 0;
        @p bra POLL;
        ld.relaxed.sys.global.u64 v, [$4];
        setp.ne.u64 p, v, 0;
        @p bra DONE;
        mov.u64 now, %globaltimer;
        sub.u64 now, now, since;
        setp.lt.u64 p, now, $5;
        @p bra POLL;
        bra DONE;
    CAME:
        fence.acq_rel.sys;
        st.global.u64 [$2], $3;
    DONE:
    }
    """
)
_PUTTING = tl.constexpr(
    """
    {
        .reg .pred p;
        setp.ne.s32 p, $4, 0;
        @p st.relaxed.sys.global.v2.u64 [$1], {$2, $3};
        mov.b32 $0, 0;
    }
    """
)
_READING = tl.constexpr(
    """
    {
        .reg .pred p, q;
        .reg .b32 k;
        .reg .b64 f, since;
        mov.b64 $0, 0;
        mov.b64 $1, 0;
        mov.b32 $2, 1;
        mov.b32 k, 0;
        setp.eq.s32 p, $7, 0;
        @p bra DONE;
        mov.u64 since, %globaltimer;
    POLL:
        ld.relaxed.sys.global.v2.u64 {$0, $1}, [$3];
        shr.u64 f, $0, 32;
        setp.eq.u64 p, f, $4;
        shr.u64 f, $1, 32;
        setp.eq.and.u64 p, f, $4, p;
        @p bra DONE;
        add.u32 k, k, 1;
        and.b32 $2, k, 127;
        setp.ne.u32 p, $2, 0;
        mov.b32 $2, 1;
        @p bra POLL;
        ld.relaxed.sys.global.u64 f, [$5];
        setp.ne.u64 p, f, 0;
        @p bra LATE;
        mov.u64 f, %globaltimer;
        sub.u64 f, f, since;
        setp.lt.u64 p, f, $6;
        @p bra POLL;
    LATE:
        mov.b32 $2, 0;
    DONE:
    }
    """
)


@triton.jit
def channel(table: tl.tensor, peer: tl.tensor, ranks: tl.tensor) -> tl.tensor:
    """Return the channel of this program to a peer, as an address."""
    index = tl.program_id(0) * ranks + peer
    return tl.cast(table, tl.int64) + index.to(tl.int64) * _SIZE


@triton.jit
def _load(address: tl.tensor) -> tl.tensor:
    """Read a 64-bit word, now: relaxed, system scope."""
    return tl.inline_asm_elementwise(
        "ld.relaxed.sys.global.u64 $0, [$1];",
        "=l,l,~{memory}",
        [address],
        dtype=tl.int64,
        is_pure=False,
        pack=1,
    )


@triton.jit
def _load_int(address: tl.tensor) -> tl.tensor:
    return tl.load(address.to(tl.pointer_type(tl.int32)))


@triton.jit
def _store_int(address: tl.tensor, value: tl.tensor) -> None:
    tl.store(address.to(tl.pointer_type(tl.int32)), value)


@triton.jit
def _store(address: tl.tensor, value: tl.tensor) -> None:
    tl.store(address.to(tl.pointer_type(tl.int64)), value)


@triton.jit
def local(channel: tl.tensor) -> tl.tensor:
    """Return the address of this rank's buffer."""
    return _load(channel)


@triton.jit
def remote(channel: tl.tensor) -> tl.tensor:
    """Return the address of the peer's buffer, as it is mapped here."""
    return _load(channel + _REMOTE)


@triton.jit
def epoch(channel: tl.tensor) -> tl.tensor:
    """Return the number of this call, from 1: for flags, and which of two places."""
    return _load(_load(channel + _CALLS)) + 1


@triton.jit
def end_call(channel: tl.tensor) -> None:
    """End this call, once all of the program has: the next has the next epoch."""
    calls = _load(channel + _CALLS)
    done = _load(calls) + 1
    tl.debug_barrier()
    _store(calls, done)


@triton.jit
def signal(channel: tl.tensor) -> None:
    """Tell the peer: what this program did before is visible to who waits (release)."""
    tl.debug_barrier()
    tl.inline_asm_elementwise(
        _SIGNALLING,
        "=r,l,l,~{memory}",
        [_load(channel + _OUTBOX), _load(channel + _COUNTS)],
        dtype=tl.int32,
        is_pure=False,
        pack=1,
    )


@triton.jit
def wait(channel: tl.tensor, step: tl.tensor = 0) -> tl.tensor:
    """Wait for the peer's next signal; what it did before is visible (acquire).

    Returns whether it came. When not, the deadline has passed, and the record says for
    whom and at which `step` of yours.
    """
    seen = _load(channel + _COUNTS) + 8
    want = _load(seen) + 1
    home = _load(channel + _HOME)
    broken = _load(home + _CONTROL + 8 * _load_int(channel + _RANK))
    tl.debug_barrier()  # all have read how many signals were seen
    tl.inline_asm_elementwise(
        _WAITING,
        "=&r,l,l,l,l,l,~{memory}",
        [_load(channel + _INBOX), seen, want, broken, _load(home + _DEADLINE)],
        dtype=tl.int32,
        is_pure=False,
        pack=1,
    )
    tl.debug_barrier()
    came = _load(seen) == want  # only thread 0 writes it: all find the same
    if came == 0:
        got = _load(_load(channel + _INBOX))
        _give_up(channel, _SIGNAL, step, got, want)
    return came


@triton.jit
def put_packets(
    channel: tl.tensor,
    at: tl.tensor,
    index: tl.tensor,
    value: tl.tensor,
    flag: tl.tensor,
    mask: tl.tensor,
) -> None:
    """Send 8-byte values, each with its flag, to places `index` from byte `at` on.

    `index`, `value` (int64) and `mask` are tensors; the flag fits in 32 bits and is one
    that these places have not held.
    """
    address = remote(channel) + at + index.to(tl.int64) * 16
    above = (flag.to(tl.int64) & 0xFFFFFFFF) << 32
    tl.inline_asm_elementwise(
        _PUTTING,
        "=r,l,l,l,r,~{memory}",
        [
            address,
            (value & 0xFFFFFFFF) | above,
            ((value >> 32) & 0xFFFFFFFF) | above,
            mask.to(tl.int32),
        ],
        dtype=tl.int32,
        is_pure=False,
        pack=1,
    )


@triton.jit
def read_packets(
    channel: tl.tensor,
    at: tl.tensor,
    index: tl.tensor,
    flag: tl.tensor,
    mask: tl.tensor,
    step: tl.tensor = 0,
) -> tl.tensor:
    """Wait for packets of our buffer; return their values (int64) and whether all came.

    `index` should have at least as many elements as the program has threads.
    """
    address = local(channel) + at + index.to(tl.int64) * 16
    want = flag.to(tl.int64) & 0xFFFFFFFF
    home = _load(channel + _HOME)
    broken = _load(home + _CONTROL + 8 * _load_int(channel + _RANK))
    low, high, there = tl.inline_asm_elementwise(
        _READING,
        "=&l,=&l,=&r,l,l,l,l,r,~{memory}",
        [address, want, broken, _load(home + _DEADLINE), mask.to(tl.int32)],
        dtype=(tl.int64, tl.int64, tl.int32),
        is_pure=False,
        pack=1,
    )
    ok = tl.min(there, 0)
    if ok == 0:
        _give_up(channel, _PACKET, step, 0, want)
    return (low & 0xFFFFFFFF) | (high << 32), ok


@triton.jit
def _give_up(
    channel: tl.tensor,
    what: tl.tensor,
    step: tl.tensor,
    got: tl.tensor,
    want: tl.tensor,
) -> None:
    """Claim the broken word, write the record once, break the peers' words."""
    home = _load(channel + _HOME)
    rank, peer = _load_int(channel + _RANK), _load_int(channel + _PEER)
    mine = _load(home + _CONTROL + 8 * rank)
    claim = _CLAIM | rank.to(tl.int64) << 40 | peer.to(tl.int64) << 32
    word = mine.to(tl.pointer_type(tl.int64))
    none = want.to(tl.int64) * 0
    found = tl.atomic_cas(word, none, claim, sem="relaxed", scope="sys")
    before = tl.atomic_cas(word + 1, none, none + 1, sem="relaxed", scope="sys")
    if before == 0:
        teller = ((found >> 40) & 0xFF).to(tl.int32)
        told = (found != 0) & (teller != rank)
        record = _load(home + _RECORD)
        _store_int(record, 1)
        _store_int(record + _WHY, tl.where(told, _TOLD, _TIMEOUT))
        _store_int(record + _WHO, rank)
        _store_int(record + _BLOCK, tl.program_id(0))
        _store_int(record + _LANE, 0)
        _store_int(record + _THREAD, 0)
        _store_int(record + _STEP, step)
        _store_int(record + _WHOM, tl.where(told, teller, peer))
        _store_int(record + _ABSENT, tl.where(told, found, none).to(tl.int32))
        _store_int(record + _DIFFER, 0)
        _store_int(record + _MARK, _load_int(home + _NAME))
        _store_int(record + _WHAT, what)
        _store(record + _EPOCH, none)
        _store(record + _GOT, none + got)
        _store(record + _WANT, want)
        _store(record + _LAUNCH, none)
        tl.inline_asm_elementwise(
            "fence.acq_rel.sys; mov.b32 $0, 0;",
            "=r,~{memory}",
            [],
            dtype=tl.int32,
            is_pure=False,
            pack=1,
        )
        _store_int(record, 2)
        for q in range(_MAX_RANKS):
            other = _load(home + _CONTROL + 8 * q)
            if (other != 0) & (q != rank) & (told == 0):
                _store(other, claim)
