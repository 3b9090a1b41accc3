"""The interpreter without Numba: the same table, walked in Python with NumPy's loops.

It serves where Numba cannot be had, far slower for small calls. Ranks with either
interpreter understand each other: memory holds the same bytes.

Memory order. Python has no acquire and release. A flag is read and written as one
aligned word, which is one move of the processor. x86 keeps stores in order and loads in
order, and neither CPython nor a C library moves them across the calls between; that is
enough there. Elsewhere a lock is taken and left twice beside every flag: each of its
operations is an atomic of the C library with acquire or release, in order.
"""

from __future__ import annotations

import ctypes
import os
import platform
import threading
import time
import weakref
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from stretto.collectives import Operator, combine, finish, storage
from stretto.executors.cpu.shared.memory import Span
from stretto.executors.cpu.shared.slab import (
    LINE,
    PACKET_HEADER,
    PACKET_REGION,
    STAGE_REGION,
)
from stretto.executors.cpu.shared.wakers import wake
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
from stretto.trace.rings import RECORD_WORDS, CallWord, RingWord

__all__ = ["HOPS", "address", "kernel_of", "launcher", "resume"]

_UNREACHABLE = -2
_DATA = object.__basicsize__
_ORDERED = platform.machine().lower() in ("x86_64", "amd64", "i686")
_LOCK = threading.Lock()
_ENTERING = threading.Lock()

_Kernel = tuple[str, Operator, int, tuple[int, ...]]
_KERNELS: list[_Kernel] = []
HOPS: weakref.WeakValueDictionary[int, Any] = weakref.WeakValueDictionary()
"""By address of a session's words, its way to ranks on other hosts."""


def kernel_of(
    dtype: str, op: Operator, srcs: int, divide: tuple[int, ...], streaming: bool
) -> int:
    """Return a number that stands for a kernel, from 1; NumPy never streams."""
    kernel = (dtype, op, srcs, divide)
    if kernel not in _KERNELS:
        _KERNELS.append(kernel)
    return _KERNELS.index(kernel) + 1


def _load(at: int) -> int:
    return ctypes.c_int64.from_address(at).value


def _store(at: int, value: int) -> None:
    ctypes.c_int64.from_address(at).value = value


def _fence() -> None:
    if not _ORDERED:
        for _ in range(2):
            _LOCK.acquire()
            _LOCK.release()


def _acquire(at: int) -> int:
    value = _load(at)
    _fence()
    return value


def _release(at: int, value: int) -> None:
    _fence()
    _store(at, value)


def address(array: Any) -> int:
    """Return where the data of a NumPy array begin."""
    return _load(id(array) + _DATA)


def _array(at: int, nbytes: int, dtype: np.dtype[Any]) -> NDArray[Any]:
    return np.asarray(Span(at, nbytes)).view(dtype)


def launcher(
    table: NDArray[np.int64], until_done: Callable[[int], None]
) -> Callable[[Any, Any], None]:
    """Return what runs a table on two arrays.

    `until_done` sees a call to its end that returned another status than DONE.
    """
    call = int(table.ctypes.data)

    def launch(x: Any, out: Any) -> None:
        if status := _Run(call).begin(id(x), id(out)):
            until_done(status)

    return launch


def resume(call: int) -> int:
    """Go on with a call that returned WAITING; return a `Status`."""
    one = _Run(call)
    spins, yields = SessionWord.SPINS, SessionWord.YIELDS
    return one.walk(one.setting(spins) + one.setting(yields))


class _Run:
    """One call, bound to its table by address."""

    def __init__(self, call: int) -> None:
        self.call = call
        self.session = self.word(Header.SESSION)
        self.fingerprint = self.word(Header.FINGERPRINT)
        count = self.word(Header.NUM_LANES)
        first = self.word(Header.LANES)
        self.lanes = range(first, first + 16 * count, 16)
        self.hop = HOPS.get(self.session)

    def word(self, index: Header) -> int:
        """Return a word of the header."""
        return _load(self.call + 8 * index)

    def put(self, index: Header, value: int) -> None:
        """Set a word of the header."""
        _store(self.call + 8 * index, value)

    def setting(self, index: SessionWord) -> int:
        """Return a word of the session."""
        return _load(self.session + 8 * index)

    def begin(self, x: int, out: int) -> int:
        """Run the call on two arrays, given by id(); return a `Status`."""
        if not self.enter():
            return Status.BUSY
        if not self.bind(x, out):
            self.leave()
            return Status.UNREGISTERED
        self.begin_record()
        return self.walk(0)

    def walk(self, idle: int) -> int:
        """Walk the call until it is done, or until nothing moved for a while."""
        while self.word(Header.TILE) < self.word(Header.TILES):
            before = [_load(lane + 8) for lane in self.lanes]
            states = [self.lane(lane) for lane in self.lanes]
            if Status.MISMATCH in states:
                return Status.MISMATCH
            moved = [_load(lane + 8) for lane in self.lanes] != before
            if Status.WAITING in states and self.hop is not None:
                moved |= self.hop.progress() > 0
            if moved:
                idle = 0
            if Status.WAITING in states:
                idle += 1
                if self.relax(idle):
                    return Status.WAITING
            else:
                epoch = self.session + 8 * SessionWord.EPOCH
                _store(epoch, _load(epoch) + 1)
                self.put(Header.TILE, self.word(Header.TILE) + 1)
                self.rewind()
        while self.hop is not None and self.hop.busy():
            idle = 0 if self.hop.progress() else idle + 1
            if self.relax(idle):
                return Status.WAITING
        self.end_record()
        self.leave()
        return Status.DONE

    def begin_record(self) -> None:
        """Write that a call begins, as recording.py does; of steps nothing."""
        ring = self.setting(SessionWord.RING)
        if not ring:
            return
        number = _load(ring) + 1
        mask, first = (_load(ring + 8 * w) for w in (RingWord.MASK, RingWord.RECORDS))
        at = first + (number & mask) * 8 * RECORD_WORDS
        now, asked = time.monotonic_ns(), _load(ring + 8 * RingWord.ENQUEUE)
        inside = self.setting(SessionWord.INSIDE)
        said = (0, self.word(Header.KIND), inside, asked or now, now, 0, 0)
        for word, value in enumerate(said):
            _store(at + 8 * word, value)
        _store(ring + 8 * RingWord.ENQUEUE, 0)
        _store(ring + 8 * RingWord.CURRENT, at)
        _store(at, number)
        _release(ring, number)

    def end_record(self) -> None:
        """Write that it has ended."""
        ring = self.setting(SessionWord.RING)
        if ring:
            at = _load(ring + 8 * RingWord.CURRENT)
            _store(at + 8 * CallWord.END, time.monotonic_ns())
            _release(at + 8 * CallWord.STATE, 1)

    def enter(self) -> bool:
        """Be the thread that is inside, unless another is."""
        word = self.session + 8 * SessionWord.INSIDE
        with _ENTERING:
            if _load(word):
                return False
            _store(word, threading.get_ident())
        return True

    def leave(self) -> None:
        """Let others in."""
        _store(self.session + 8 * SessionWord.INSIDE, 0)

    def bind(self, x: int, out: int) -> bool:
        """Bind the table to the caller's memory, and tell peers which call this is."""
        source = _load(x + _DATA) if self.word(Header.HAS_INPUT) else 0
        target = _load(out + _DATA) if self.word(Header.HAS_OUTPUT) else 0
        source_at = self.offset(source, Header.SHARES_INPUT)
        target_at = self.offset(target, Header.SHARES_OUTPUT)
        if _UNREACHABLE in (source_at, target_at):
            return False
        self.put(Header.INPUT, source)
        self.put(Header.OUTPUT, target)
        self.put(Header.INPUT_OFFSET, source_at)
        self.put(Header.OUTPUT_OFFSET, target_at)
        self.put(Header.TILE, 0)
        line = self.setting(SessionWord.CALL)
        _release(line, 0)
        _release(line + 8 * Line.FINGERPRINT, self.fingerprint)
        _store(line + 8 * Line.INPUT_OFFSET, source_at)
        _store(line + 8 * Line.OUTPUT_OFFSET, target_at)
        _release(line, self.setting(SessionWord.EPOCH))
        self.rewind()
        return True

    def offset(self, memory: int, shared: Header) -> int:
        """Return a shared buffer's offset, or PRIVATE, or unreachable."""
        if not self.word(shared):
            return PRIVATE
        at = memory - self.setting(SessionWord.HEAP)
        return at if 0 <= at < self.setting(SessionWord.HEAP_BYTES) else _UNREACHABLE

    def rewind(self) -> None:
        """Set every lane to its first instruction."""
        for lane in self.lanes:
            _store(lane + 8, _load(lane))

    def relax(self, idle: int) -> bool:
        """Wait a little, longer the longer nothing moved; return whether to look."""
        spins = self.setting(SessionWord.SPINS)
        yields = spins + self.setting(SessionWord.YIELDS)
        if spins <= idle < yields:
            os.sched_yield()
        elif idle >= yields and self.hop is not None:
            self.hop.wait(self.setting(SessionWord.SLEEP_US))  # never for long
        elif idle >= yields:
            time.sleep(self.setting(SessionWord.SLEEP_US) * 1e-6)
        return idle >= yields + self.setting(SessionWord.SLEEPS)

    def lane(self, lane: int) -> int:
        """Run a lane until its end, or until it must wait."""
        epoch = self.setting(SessionWord.EPOCH)
        at, status = _load(lane + 8), Status.DONE
        while (code := _load(at)) != Code.END:
            if code == Code.MOVE:
                status = self.packets(at, epoch)
                if status is Status.DONE:
                    self.move(at, epoch)
            elif code == Code.SIGNAL:
                self.signal(at, epoch)
            elif code == Code.PUT:
                status = self.put_far(at, epoch)
            elif code == Code.RAISE:
                status = self.raise_far(at, epoch)
            else:
                status = self.wait(at, epoch)
            if status is not Status.DONE:
                break
            at = _load(at + 8)
        _store(lane + 8, at)
        return status

    def signal(self, at: int, epoch: int) -> None:
        """Raise a flag in a peer's memory."""
        flag, n = _load(at + 16), _load(at + 24)
        side = flag + 8 + 24 * (epoch & 1)
        _store(side, self.fingerprint)
        _store(side + 8, self.word(Header.INPUT_OFFSET))
        _store(side + 16, self.word(Header.OUTPUT_OFFSET))
        _release(flag, (epoch << FLAG) + n)
        wake(self.setting(SessionWord.WAKERS), _load(at + 32))

    def put_far(self, at: int, epoch: int) -> Status:
        """Begin a put to another host."""
        assert self.hop is not None, "far steps have a way"
        peer, lane, base, value, offset, size = (
            _load(at + 8 * i) for i in (2, 3, 7, 8, 9, 10)
        )
        tile_bytes, stage = self.word(Header.TILE_BYTES), STAGE_REGION * (epoch & 1)
        done = self.word(Header.TILE) * tile_bytes
        nbytes = min(tile_bytes, size - done)
        if nbytes <= 0:
            return Status.DONE
        starts = {
            Base.STAGE: stage,
            Base.INPUT: self.word(Header.INPUT) + done,
            Base.OUTPUT: self.word(Header.OUTPUT) + done,
        }
        source = value + starts[Base(base)]
        begun = self.hop.put(peer, lane, source, offset + stage, nbytes)
        return Status.DONE if begun else Status.WAITING

    def raise_far(self, at: int, epoch: int) -> Status:
        """Raise a flag on another host."""
        assert self.hop is not None, "far steps have a way"
        peer, lane, flag, n = (_load(at + 8 * i) for i in (2, 3, 4, 10))
        side = flag + 8 + 24 * (epoch & 1)
        words = (
            self.fingerprint,
            self.word(Header.INPUT_OFFSET),
            self.word(Header.OUTPUT_OFFSET),
        )
        begun = self.hop.signal(peer, lane, flag, (epoch << FLAG) + n, side, words)
        return Status.DONE if begun else Status.WAITING

    def wait(self, at: int, epoch: int) -> Status:
        """Return whether a flag is up."""
        flag, n = _load(at + 16), _load(at + 24)
        if _acquire(flag) < (epoch << FLAG) + n:
            return Status.WAITING
        side = flag + 8 + 24 * (epoch & 1)
        same = _load(side) == self.fingerprint
        if self.word(Header.SHARES_INPUT):
            same &= _load(side + 8) in (PRIVATE, self.word(Header.INPUT_OFFSET))
        if self.word(Header.SHARES_OUTPUT):
            same &= _load(side + 16) in (PRIVATE, self.word(Header.OUTPUT_OFFSET))
        return Status.DONE if same else Status.MISMATCH

    def operands(self, at: int) -> list[tuple[int, int, int]]:
        """Return base, value and peer of a MOVE's operands."""
        count = _load(at + 40) + _load(at + 48)
        words = [_load(at + LINE + 8 * i) for i in range(3 * count)]
        return list(zip(words[::3], words[1::3], words[2::3], strict=True))

    def packets(self, at: int, epoch: int) -> Status:
        """Return whether a MOVE's packets are there."""
        for base, value, _ in self.operands(at)[_load(at + 40) :]:
            if base == Base.PACKET:
                slot = value + PACKET_REGION * (epoch & 1)
                if _acquire(slot) != epoch:
                    return Status.WAITING
                if _load(slot + 8) != self.fingerprint:
                    return Status.MISMATCH
        return Status.DONE

    def move(self, at: int, epoch: int) -> None:
        """Combine the sources into the destinations, then announce packets."""
        dtype, op, _, divide = _KERNELS[_load(at + 16) - 1]
        tile_bytes, dsts = self.word(Header.TILE_BYTES), _load(at + 40)
        done = self.word(Header.TILE) * tile_bytes
        nbytes = min(tile_bytes, _load(at + 32) - done)
        starts = {
            Base.STAGE: STAGE_REGION * (epoch & 1),
            Base.INPUT: self.word(Header.INPUT) + done,
            Base.OUTPUT: self.word(Header.OUTPUT) + done,
            Base.PACKET: PACKET_REGION * (epoch & 1) + PACKET_HEADER,
        }
        operands = self.operands(at)
        if nbytes > 0:
            arrays = [
                _array(value + starts[Base(base)], nbytes, storage(dtype))
                for base, value, _ in operands
            ]
            total = combine(op, arrays[dsts:], dtype)
            for dst, by in zip(arrays, divide, strict=False):
                dst[:] = finish(op, total, by, dtype) if by > 1 else total
        for base, value, peer in operands[:dsts]:
            if base == Base.PACKET:
                slot = value + PACKET_REGION * (epoch & 1)
                _store(slot + 8, self.fingerprint)
                _release(slot, epoch)
                wake(self.setting(SessionWord.WAKERS), peer)
