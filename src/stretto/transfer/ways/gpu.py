"""Transfers to and from memory on GPUs: enqueued on a stream, by this process alone."""

from __future__ import annotations

import contextlib
import functools
import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from stretto.errors import (
    CallError,
    ChecksumError,
    DeviceError,
    EngineLost,
    StaleMemory,
    StrettoError,
    TransferError,
    TransferTimeout,
)
from stretto.executors import cuda
from stretto.fabric.forks import Refuses
from stretto.fabric.memory import word_at
from stretto.transfer.copying.words import Mode
from stretto.transfer.links.counterpart import Counterpart
from stretto.transfer.loader import functions
from stretto.transfer.memory.tensors import GPU
from stretto.transfer.plans import BoxRun, Plan
from stretto.transfer.ports import LoopLike
from stretto.transfer.regions.leases import Leases
from stretto.transfer.regions.region import View
from stretto.transfer.regions.shelf import Shelf
from stretto.transfer.ways.transfer import Transfer

_LOOK_S = 0.00002


def handle_of(stream: Any) -> int:
    """Return the handle of a stream, whatever library it is of."""
    if isinstance(stream, int):
        return stream
    for name in ("cuda_stream", "ptr", "handle"):
        if (found := getattr(stream, name, None)) is not None:
            return int(found)
    raise CallError(f"stream={stream!r:.60}; want a CUDA stream, or its handle")


class Gpu:
    """What an engine has of the GPU of its process; made when it is first needed."""

    def __init__(self, loop: LoopLike, lock: Any, shelf: Shelf, leases: Leases) -> None:
        self._loop, self._lock, self._shelf, self._leases = loop, lock, shelf, leases
        self.mover = cuda.mover()
        self._mapped: dict[tuple[int, str, int], list[int]] = {}
        self._registered: dict[int, int] = {}
        self._rings: dict[int, tuple[Counterpart | None, Any]] = {}

    def ring(self, peer: Counterpart | None) -> Any:
        """Return pinned memory for what goes to and from a peer; or for ourselves."""
        from stretto.transfer.ways.gpu_stage import PinnedRing

        with self._lock:
            for key, (other, ring) in list(self._rings.items()):
                if other is not None and other.lost:
                    del self._rings[key]
                    self._loop.move(ring.close)
            if id(peer) not in self._rings:
                self._rings[id(peer)] = (
                    peer,
                    PinnedRing(self.mover, self._loop, self._leases),
                )
            return self._rings[id(peer)][1]

    def describe(
        self, addresses: Sequence[int], sizes: Sequence[int]
    ) -> tuple[list[dict[str, Any]], tuple[int, ...]]:
        """Return what peers need to map memory, and the descriptors that go with it."""
        parts: list[dict[str, Any]] = []
        fds: list[int] = []
        for address, nbytes in zip(addresses, sizes, strict=True):
            try:
                told, held = self.mover.describe(address, nbytes)
            except DeviceError as e:  # it goes through pinned memory then
                told, held = {"kind": "none", "why": str(e)}, ()
            parts.append({**told, "fds": len(held)})
            fds += held
        return parts, tuple(fds)

    def addresses(self, view: View) -> list[int]:
        """Return where a view's tensors are, for a kernel of this process."""
        region = view.region
        peer = region.peer
        if region.kind != GPU:
            self._register(view)
            return view.addresses
        if peer is None or peer.is_self:
            return view.addresses
        key = (id(peer), region.name, region.epoch)
        found = self._mapped.get(key)
        if found is None:
            found, at = [], 0
            for told in region.gpu:
                count = int(told["fds"])
                fds = [d.number for d in region.holds[at : at + count]]  # type: ignore[index]
                found.append(self.mover.open(told, fds))
                at += count
            self._mapped[key] = found
        return [at + view.shift for at in found]

    def _register(self, view: View) -> None:
        """Let the GPU reach a view's host memory: once for each tensor, or arena."""
        region = view.region
        arenas = None if region.peer is None else region.peer.arenas
        for at in region.addresses:
            part = region.layout.part_bytes
            start, nbytes = self._shelf.mapping_of(arenas, at, part)
            if self._registered.get(start, 0) < nbytes:
                self.mover.register(start, nbytes)
                self._registered[start] = nbytes

    def word(self, view: View) -> int:
        """Return where a word lies that is raised when bytes are there."""
        if view.region.kind != GPU or view.layout.part_bytes != 8 or view.layout.parts:
            raise CallError(
                f"signal={view.region.name!r}, {view.layout}; want 8 bytes on a GPU, "
                "such as flags[3:4] of a region of int64"
            )
        return self.addresses(view)[0]

    def prepare(
        self, made: Plan, run: BoxRun, a: View, b: View, by: str, word: int = 0
    ) -> Any:
        """Return what moves a run of boxes, as often as wanted."""
        src, dst = self.addresses(a), self.addresses(b)
        box = run.boxes[0]
        module = cuda
        boxes = module.boxes(
            src_box=np.array([src[x.src_part] + x.src_at for x in run.boxes], np.int64),
            dst_box=np.array([dst[x.dst_part] + x.dst_at for x in run.boxes], np.int64),
            src_chunk=run.src_at, dst_chunk=run.dst_at, axes=box.axes, run=box.run,
            src_dtype=made.src.dtype, dst_dtype=made.dst.dtype,
            src_item=made.src.itemsize, dst_item=made.dst.itemsize,
        )  # fmt: skip
        return self.mover.prepare(boxes, by=by, word=word)

    def handle(self, stream: Any) -> int:
        """Return a stream's handle; without one, the current one's."""
        return int(self.mover.stream()) if stream is None else handle_of(stream)

    def comparing(
        self, made: Plan, runs: Sequence[BoxRun], a: View, b: View
    ) -> Callable[[], bool]:
        """Return what compares both sides' sums."""
        from stretto.transfer.ways.gpu_stage import GpuWork

        ring = self.ring(None)
        src, dst = self.addresses(a), self.addresses(b)

        def same() -> bool:
            works = [GpuWork(ring, made, r, src, dst, mode=Mode.PACK) for r in runs]
            return all(w.summed(Mode.SUM_SRC) == w.summed(Mode.SUM_DST) for w in works)

        return same

    def copier(self, stream: Any) -> Any:
        """Return what copies between memory on the GPU and pieces of a store."""
        from stretto.transfer.ways.gpu_stage import copy_piece

        ring = self.ring(None)
        ring.lane.follow(self.handle(stream))
        return functools.partial(copy_piece, ring)

    def close(self) -> None:
        """Give everything back."""
        for _, ring in self._rings.values():
            ring.close()
        self.mover.close_all()
        for start in self._registered:
            self.mover.unregister(start)


class GpuTransfer(Transfer):
    """Copies on a stream: done when the stream has come past them."""

    def __init__(
        self, loop: LoopLike, peer: Counterpart | None, path: str, *,
        moves: Sequence[Any], stream: int, free: Callable[[], None], **how: Any,
    ) -> None:  # fmt: skip
        super().__init__(loop, peer, path, **how)
        self._moves, self._stream = moves, stream
        self._free = free
        self.is_same: Callable[[], bool] | None = None
        """What says whether both sides hold the same bytes."""
        self._guard: Any = None
        self._is_free = False
        """Whether its memory was released."""

    def guard(self, peer: Counterpart, at: int, slot: int, epoch: int) -> None:
        """Say at a mark that we write, while the copies are under way."""
        assert peer.board is not None, "the memory is of this host"
        word = word_at(at)
        word[0] = epoch
        functions().fence_now()
        self._guard = word
        if peer.board.epoch(slot) != epoch:
            self._release()  # nothing has been enqueued
            self.stop(StaleMemory, "the memory was given to someone else meanwhile")

    def enqueue(self) -> None:
        """Enqueue the copies, and note where the stream is then."""
        if self.is_ending:
            return
        for move in self._moves:
            move.enqueue(self._stream)
        self._moves[-1].record(self._stream)

    def _help(self, until: float | None) -> None:
        self.settle(until)

    def settle(self, until: float | None = None) -> None:
        """Look until the copies are done; several threads may."""
        while not self._is_done:
            if self.turn.acquire(blocking=False):
                try:
                    self._look()
                finally:
                    self.turn.release()
            if until is not None and time.monotonic() > until:
                return
            if not self._is_done:
                time.sleep(_LOOK_S)

    def _look(self) -> None:
        if self.is_ending:
            return
        late = self.until is not None and time.monotonic() > self.until
        lost = self.peer is not None and self.peer.lost
        try:
            if not self._moves[-1].done():
                if late or lost:
                    self._give_up(late)
                return
        except StrettoError as e:
            self.stop(TransferError, str(e))
            return
        if self.is_same is not None and not self.is_same():
            self._release()
            self.stop(ChecksumError, "what has arrived is not what was sent")
            return
        self._release()
        self.announce()

    def _give_up(self, late: bool) -> None:
        """End it in vain: its time is over, or there is nobody to be told."""
        why = "the stream has not come to it before its deadline"
        if self.peer is not None and self.peer.lost:
            self.stop(EngineLost, self.peer.lost)
        elif late:
            self.stop(TransferTimeout, why)

    def _calm(self) -> None:
        """Call nothing back: nobody is notified; what the stream has is still copied.

        However it ends in vain, its memory is marked until the stream has come past it.
        """
        super()._calm()
        if not self._is_free:
            self._loop.move(self._see_off)

    def _see_off(self) -> None:
        with contextlib.suppress(StrettoError):  # what has failed is over, too
            while not self._moves[-1].done():
                time.sleep(0.001)
        self._release()

    def _release(self) -> None:
        with self.turn:
            is_free, self._is_free = self._is_free, True
        if is_free:
            return
        if self._guard is not None:
            self._guard[0] = 0
            self._guard = None
        self._free()


class EnqueuedCopies:
    """A prepared transfer on a GPU: each call enqueues it on a stream, or in a graph.

    Whoever orders the streams knows when it is done, and notifies.
    """

    def __init__(self, moves: Sequence[Any], mover: Any, holds: object) -> None:
        self._moves, self._mover, self._holds = moves, mover, holds

    def disown(self, error: EngineLost) -> None:
        """Be of no use in a child that this process forks."""
        self._moves, self._mover = (Refuses(error),), Refuses(error)

    @property
    def by(self) -> str:
        """Return who copies: "kernel" or "engines"."""
        return str(self._moves[0].by) if self._moves else ""

    def __call__(self, stream: Any = None) -> None:
        """Enqueue it; without a stream, on the current one."""
        handle = self._mover.stream() if stream is None else handle_of(stream)
        for move in self._moves:
            move.enqueue(handle)


class Passing:
    """A prepared transfer of memory on a GPU that goes through this process.

    Each call begins it behind what a stream was given, and returns when it is done.
    """

    def __init__(self, begin: Callable[[Any], Transfer], by: str) -> None:
        self._begin, self.by = begin, by

    def disown(self, error: EngineLost) -> None:
        """Be of no use in a child that this process forks."""
        self._begin = Refuses(error)

    def __call__(self, stream: Any = None) -> None:
        """Do it."""
        self._begin(stream).wait()
