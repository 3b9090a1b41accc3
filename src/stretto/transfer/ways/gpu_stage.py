"""Memory on a GPU that goes through this process: packed into pinned memory, and out.

Several parts are under way at once: while one is carried to the peer, or taken from it,
the GPU packs or unpacks others, on a stream of its own.
"""

from __future__ import annotations

import contextlib
import mmap
import threading
import time
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from stretto.errors import StrettoError
from stretto.executors import cuda
from stretto.fabric.memory import bytes_at, word_at
from stretto.transfer.copying.words import Job, Mode, Status
from stretto.transfer.copying.work import CopyWork
from stretto.transfer.links.counterpart import Counterpart
from stretto.transfer.links.words import Kind
from stretto.transfer.plans import Box, BoxRun, Plan
from stretto.transfer.ports import LoopLike
from stretto.transfer.regions.leases import Leases
from stretto.transfer.stores.pieces import PieceTask
from stretto.transfer.ways.staged import PART, Receiving, Sending

SLOTS = 4
"""Parts that are under way at once, each way, with one peer."""
_LOOK_S = 0.00005


class PinnedRing:
    """Pinned memory for the parts of one peer, and the stream that fills it."""

    def __init__(self, mover: Any, loop: LoopLike, leases: Leases) -> None:
        self.mover, self.loop, self.leases = mover, loop, leases
        self.lane = mover.lane()
        self._memory = np.frombuffer(mmap.mmap(-1, 2 * SLOTS * PART), np.uint8)
        at = int(self._memory.ctypes.data)
        mover.register(at, len(self._memory))
        places = [at + n * PART for n in range(2 * SLOTS)]
        self.out, self.inward = deque(places[:SLOTS]), deque(places[SLOTS:])

    def close(self) -> None:
        """Give it back."""
        self.lane.close()
        self.mover.unregister(int(self._memory.ctypes.data))


class GpuWork(CopyWork):
    """A run whose side here lies on a GPU; the other side is a dense piece."""

    is_on_gpu = True

    def __init__(
        self, ring: PinnedRing, made: Plan, run: BoxRun, src: Sequence[int],
        dst: Sequence[int] | None = None, *, mode: Mode,
    ) -> None:  # fmt: skip
        super().__init__(made, run, src, src if dst is None else dst, mode=mode)
        self._ring, self._made = ring, made
        self._packs = mode is Mode.PACK
        self._places: NDArray[np.int64] | None = None

    def begin(self, first: int, stop: int, cursor: int) -> Any:
        """Begin to move these runs from or to pinned memory; return the move."""
        if self._places is None:
            self._places = self.places(is_source=self._packs)
        made, each = self._made, self.row_bytes
        ours = np.ascontiguousarray(self._places[first:stop])
        dense = cursor + each * np.arange(stop - first, dtype=np.int64)
        src, dst = (ours, dense) if self._packs else (dense, ours)
        zero = np.zeros(1, np.int64)
        to = made.src if self._packs else made.dst
        boxes = cuda.boxes(
            src_box=zero, dst_box=zero, src_chunk=src, dst_chunk=dst, axes=(),
            run=each // made.src.itemsize, src_dtype=made.src.dtype, dst_dtype=to.dtype,
            src_item=made.src.itemsize, dst_item=to.itemsize,
        )  # fmt: skip
        return _begun(self._ring, boxes)

    def note(self, first: int, stop: int) -> None:
        """Note that runs have been moved."""
        each = self.row_bytes // self._made.src.itemsize * self._made.dst.itemsize
        self.job[Job.ROW] = stop
        self.job[Job.MOVED] += (stop - first) * each

    def writes(self, more: int) -> None:
        """Say that the GPU begins, or has ended, to write: its owner waits for that."""
        at, epoch = self.guarded
        if at:
            self._ring.leases.note(epoch, more)

    def is_stale(self) -> bool:
        """Return whether the memory was given to someone else."""
        epoch, want = self.guarded
        return bool(epoch) and int(word_at(epoch)[0]) != want

    def part(self, first: int, stop: int, cursor: int) -> Status:
        """Move these runs, and wait for it; `cursor` need not be pinned."""
        each, most = self.row_bytes, max(1, PART // self.row_bytes)
        for begin in range(first, stop, most):
            end = min(stop, begin + most)
            nbytes, at = (end - begin) * each, cursor + (begin - first) * each
            slots = self._ring.out if self._packs else self._ring.inward
            while not slots:
                time.sleep(_LOOK_S)
            slot = slots.popleft()
            try:
                if not self._packs:
                    bytes_at(slot, nbytes)[:] = bytes_at(at, nbytes)
                self.writes(1)
                try:
                    if self.is_stale():
                        return Status.STALE
                    _await(self.begin(begin, end, slot))
                finally:
                    self.writes(-1)
                if self._packs:
                    bytes_at(at, nbytes)[:] = bytes_at(slot, nbytes)
            finally:
                slots.append(slot)
            self.note(begin, end)
        return Status.DONE

    def summed(self, mode: Mode) -> int:
        """Return the sum of all bytes here, as the CPU's loops count it."""
        side = self._made.src if mode is Mode.SUM_SRC else self._made.dst
        each = self.row_bytes // self._made.src.itemsize * side.itemsize
        box = Box(src_part=0, dst_part=0, src_at=0, dst_at=0, axes=(),
                  run=each // side.itemsize)  # fmt: skip
        places = each * np.arange(self.rows, dtype=np.int64)
        run = BoxRun(
            boxes=(box,), src_at=places, dst_at=places, nbytes=self.rows * each
        )
        plan = Plan(src=side, dst=side, only=(), tokens=1, boxes=(box,))
        copy = np.empty(max(1, self.rows * each), np.uint8)
        back = GpuWork(self._ring, plan, run, [0], mode=Mode.PACK)
        back._places = self.places(is_source=mode is Mode.SUM_SRC)
        back.part(0, self.rows, int(copy.ctypes.data))
        at = [int(copy.ctypes.data)]
        return CopyWork(plan, run, at, at, mode=Mode.SUM_SRC).summed(Mode.SUM_SRC)


def _begun(ring: PinnedRing, boxes: Any) -> Any:
    """Return a move that is enqueued."""
    move = ring.mover.prepare(boxes)
    try:
        move.enqueue(ring.lane.stream)
        move.record(ring.lane.stream)
    except BaseException:
        move.close()
        raise
    return move


def copy_piece(
    ring: PinnedRing, made: Plan, task: PieceTask, buffer: NDArray[np.uint8], base: int,
    is_put: bool,
) -> None:  # fmt: skip
    """Copy a task's runs between the GPU and a buffer, which is pinned for it."""
    at = int(buffer.ctypes.data)
    ring.mover.register(at, len(buffer))
    moves = []
    try:
        for extent in task.extents:
            zero, begin = np.zeros(1, np.int64), extent.begin + (at - base)
            src, dst = (extent.ours, begin) if is_put else (begin, extent.ours)
            boxes = cuda.boxes(
                src_box=zero, dst_box=zero, src_chunk=src, dst_chunk=dst, axes=(),
                run=extent.elements, src_dtype=made.src.dtype, dst_dtype=made.dst.dtype,
                src_item=made.src.itemsize, dst_item=made.dst.itemsize,
            )  # fmt: skip
            moves.append(_begun(ring, boxes))
    finally:
        for move in moves:
            _await(move)
        ring.mover.unregister(at)


def _await(move: Any) -> None:
    try:
        while not move.done():
            time.sleep(_LOOK_S)
    finally:
        move.close()


@dataclass(slots=True)
class _Flying:
    """A part that the GPU is at."""

    move: Any
    work: GpuWork
    part: int
    first: int
    stop: int
    slot: int

    @property
    def nbytes(self) -> int:
        return (self.stop - self.first) * self.work.row_bytes


class GpuSending(Sending):
    """The side that has the bytes, on a GPU."""

    def __init__(
        self, ring: PinnedRing, peer: Counterpart, number: int,
        works: list[CopyWork], *, checked: bool, holds: object = None,
    ) -> None:  # fmt: skip
        super().__init__(peer, number, works, checked=checked, holds=holds)
        self._ring, self._turn = ring, threading.Lock()
        self._flying: deque[_Flying] = deque()
        self._landed: list[Any] = []

    def go(self, to: int) -> None:
        """Send through the stage: there is no other way."""

    def pump(self) -> bool:
        """Send what the GPU has packed, and have it pack more."""
        with self._turn:
            if self._stop[0]:
                return True
            try:
                self._land()
                if not self.is_over:
                    self._fly()
                if not (self.is_over or self._flying or self._part < len(self.works)):
                    self.end(Status.DONE)
            except StrettoError as e:
                self._stop[0] = 1
                self.failed = str(e)
        if self.is_over or self._stop[0]:
            self._let_go()
            return True
        loop = self._ring.loop
        loop.at(time.monotonic() + _LOOK_S, loop.wake)
        return False

    def stop(self) -> None:
        """Send nothing more; a thread waits for what the GPU is at."""
        super().stop()
        self._ring.loop.move(self._let_go)

    def _let_go(self) -> None:
        with self._turn:
            while self._flying:
                flying = self._flying.popleft()
                with contextlib.suppress(StrettoError):
                    _await(flying.move)
                self._ring.out.append(flying.slot)
            while self._landed:
                self._landed.pop().close()

    def _land(self) -> None:
        link = self.peer.link
        while self._flying and self._flying[0].move.done():
            one = self._flying[0]
            if one.work.is_stale():  # what was packed before that is right
                self.end(Status.STALE)
                return
            place = link.place(one.nbytes)
            if place is None:
                return
            self._landed.append(self._flying.popleft().move)  # freed at the end
            at = link.out_address(place)
            bytes_at(at, one.nbytes)[:] = bytes_at(one.slot, one.nbytes)
            self._ring.out.append(one.slot)
            link.carry(at, place, one.nbytes, self.peer.give_up)
            self.peer.say(
                Kind.DATA, self.number, one.part, one.first, one.stop, place, one.nbytes
            )

    def _fly(self) -> None:
        while self._part < len(self.works) and self._ring.out:
            work = self.works[self._part]
            assert isinstance(work, GpuWork), "it lies on a GPU"
            rows = min(work.rows - self._row, max(1, PART // work.row_bytes))
            slot, first = self._ring.out.popleft(), self._row
            try:
                move = work.begin(first, first + rows, slot)
            except BaseException:
                self._ring.out.append(slot)
                raise
            self._flying.append(
                _Flying(move, work, self._part, first, first + rows, slot)
            )
            self._row += rows
            if self._row == work.rows:
                self._part, self._row = self._part + 1, 0


class GpuReceiving(Receiving):
    """The side that wants the bytes, on a GPU."""

    def __init__(
        self,
        ring: PinnedRing,
        peer: Counterpart,
        works: list[CopyWork],
        *,
        holds: object = None,
    ) -> None:
        super().__init__(peer, works, holds=holds)
        self._ring, self._turn = ring, threading.RLock()
        self._flying: deque[_Flying] = deque()
        self._landed: list[Any] = []
        self._is_closed = False

    def open(self, mark: int = 0) -> None:
        """Open nothing: what comes goes through the stage."""

    def _unpack(self, work: CopyWork, first: int, last: int, at: int) -> None:
        assert isinstance(work, GpuWork), "it lies on a GPU"
        with self._turn:
            if not self._is_closed:
                self._begin(work, first, last, at)

    def _begin(self, work: GpuWork, first: int, last: int, at: int) -> None:
        while len(self._flying) >= SLOTS or not self._ring.inward:
            if not self._flying:
                time.sleep(_LOOK_S)  # another transfer's will be done
                continue
            self._land()
        slot, nbytes = self._ring.inward.popleft(), (last - first) * work.row_bytes
        assert nbytes <= PART, "what comes by a stage is cut into parts"
        bytes_at(slot, nbytes)[:] = bytes_at(at, nbytes)
        work.writes(1)
        try:
            move = None if work.is_stale() else work.begin(first, last, slot)
        except StrettoError:
            self.status = Status.FAILED
        else:
            if move is not None:
                flying = _Flying(move, work, 0, first, last, slot)
                self._flying.append(flying)
                return
            self.status = Status.STALE
        work.writes(-1)
        self._ring.inward.append(slot)

    def _land(self) -> None:
        """Wait for the oldest part."""
        one = self._flying.popleft()
        try:
            while not one.move.done():
                time.sleep(_LOOK_S)
        except StrettoError:
            self.status = Status.FAILED
        else:
            one.work.note(one.first, one.stop)
        one.work.writes(-1)
        self._landed.append(one.move)  # freed at the end
        self._ring.inward.append(one.slot)

    def wait(self) -> None:
        """Return when the GPU has stored all that has come."""
        with self._turn:
            while self._flying:
                self._land()
            while self._landed:
                self._landed.pop().close()

    @property
    def is_full(self) -> bool:
        """Return whether everything has come, and is stored."""
        self.wait()
        return self._part == len(self.works)

    def close(self) -> None:
        """Have nothing stored any more."""
        with self._turn:
            self._is_closed = True
            self.wait()
