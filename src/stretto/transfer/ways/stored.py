"""Transfers to and from a store: piece by piece, by some threads, failures by page."""

from __future__ import annotations

import mmap
import threading
import time
import zlib
from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from stretto.errors import (
    ChecksumError,
    StaleMemory,
    StrettoError,
    TransferCancelled,
    TransferError,
    TransferTimeout,
    is_interruption,
)
from stretto.fabric.workers import Workers
from stretto.transfer.copying.words import Mode, Status
from stretto.transfer.copying.work import CopyWork
from stretto.transfer.plans import Plan
from stretto.transfer.ports import LoopLike
from stretto.transfer.stores.pieces import PieceTask, tasks
from stretto.transfer.stores.store import Missing, Piece, Volume
from stretto.transfer.ways.order import Order
from stretto.transfer.ways.transfer import Transfer

Copier = Callable[[Plan, PieceTask, NDArray[np.uint8], int, bool], None]
"""Copies a task's runs between our memory and a buffer from a byte of its piece on."""
_LOCKS = 64


class Helpers:
    """Threads that move pieces, and the locks of pieces that are stored in parts."""

    def __init__(self) -> None:
        self._workers = Workers("stretto-transfer-store")
        self._pieces = [threading.Lock() for _ in range(_LOCKS)]

    def give(self, tasks: Sequence[Callable[[], None]], most: int) -> None:
        """Have threads do tasks, `most` of them at once."""
        for task in tasks:
            self._workers.give(task, most)

    def lock_of(self, piece: Piece) -> threading.Lock:
        """Return what is held while a piece is read, changed and stored."""
        return self._pieces[hash(piece) % _LOCKS]

    def close(self) -> None:
        """End the threads, when they have done what they are at."""
        self._workers.stop(5.0)


class StoredTransfer(Transfer):
    """Ended when all pieces have been tried: its error names the pages that failed."""

    def __init__(
        self, loop: LoopLike, order: Order, helpers: Helpers, copier: Copier | None,
        deadline: float | None,
    ) -> None:  # fmt: skip
        super().__init__(
            loop, None, order.path.name, nbytes=order.nbytes, pieces=order.pieces,
            deadline=deadline, checked=order.checked, holds=order,
        )  # fmt: skip
        volume, ours = order.theirs.region.holds, order.ours
        assert isinstance(volume, Volume), "it is in a store"
        self.what = f"transfer of {volume.name!r}, {self.path}"
        self._volume, self._plan, self._is_put = volume, order.plan, order.is_put
        self._copier, self._helpers = copier or _by_cpu, helpers
        self._bytes_done = 0
        self.how_far = lambda: (self._bytes_done, 0)
        pages = [run.pages(ours.layout, ours.pages) for run in order.runs]
        some = tasks(
            order.plan, order.runs, order.ours_at, volume, pages,
            shift=order.theirs.shift, is_put=order.is_put,
        )  # fmt: skip
        self._tasks = tuple(some)
        self._left = len(self._tasks)
        self._count = threading.Lock()
        self._wrong: list[tuple[PieceTask, Exception]] = []
        self._moved: set[int] = set()

    def begin(self) -> None:
        """Have threads do it; nothing of a task is moved once it has ended."""
        if not self._tasks:
            self.complete()
            return
        some = [lambda task=task: self._try(task) for task in self._tasks]
        self._helpers.give(some, self._volume.store.streams)

    def _try(self, task: PieceTask) -> None:
        try:
            if not self.is_ending:
                self._late()
                self._move_task(task)
        except Exception as e:
            if is_interruption(e):
                raise
            with self._count:
                self._wrong.append((task, e))
        else:
            with self._count:
                self._moved.add(id(task))
                self._bytes_done += task.nbytes
        with self._count:
            self._left -= 1
            is_last = not self._left
        if is_last and not self.is_ending:
            self._finish()

    def _late(self) -> None:
        if self.until is not None and time.monotonic() > self.until:
            self.end(Status.LATE)
            raise TransferTimeout("late")

    def _finish(self) -> None:
        if not self._wrong:
            self.complete()
            return
        task, first = self._wrong[0]
        if not isinstance(first, StrettoError):
            why = f"{type(first).__name__}: {first}"
        else:
            why = str(first)
        kind = ChecksumError if isinstance(first, ChecksumError) else TransferError
        many = len(self._wrong)
        self.stop(kind, f"{many} of {len(self._tasks)} pieces, {task.piece}: {why}")

    @property
    def peer_name(self) -> str:
        """Return the store."""
        return self._volume.store.where

    def _failed(self, blocks: int) -> tuple[int, ...]:
        with self._count:
            some = [t.pages for t in self._tasks if id(t) not in self._moved]
        return tuple(sorted({int(p) for pages in some for p in pages if p >= 0}))

    # One piece.

    def _move_task(self, task: PieceTask) -> None:
        if self._is_put:
            self._store(task)
        else:
            self._fetch(task)

    def _copy(self, task: PieceTask, buffer: NDArray[np.uint8], base: int) -> None:
        """Copy between our memory and a buffer that begins at a byte of the piece."""
        with self.turn:  # who takes it back waits for this
            if self.is_ending:
                raise TransferCancelled("taken back")
            self._copier(self._plan, task, buffer, base, self._is_put)

    def _store(self, task: PieceTask) -> None:
        store, piece = self._volume.store, task.piece
        keeps_rest = store.takes_parts and task.is_dense and not self.checked
        if task.is_whole or keeps_rest:
            buffer = _buffer(task.stop - task.first)
            self._copy(task, buffer, task.first)
            total = _sum(buffer) if self.checked else None
            with self._helpers.lock_of(piece):
                store.write(piece, task.first, buffer.data, total)
            return
        with self._helpers.lock_of(piece):  # the rest of it stays what it is
            buffer = _buffer(piece.nbytes)
            try:
                store.read(piece, 0, buffer.data)
            except Missing:
                buffer[:] = 0
            self._copy(task, buffer, 0)
            total = _sum(buffer) if self.checked else None
            store.write(piece, 0, buffer.data, total)

    def _fetch(self, task: PieceTask) -> None:
        store, piece = self._volume.store, task.piece
        whole = self.checked or 2 * (task.stop - task.first) > piece.nbytes
        first, stop = (0, piece.nbytes) if whole else (task.first, task.stop)
        buffer = _buffer(stop - first)
        kept = store.read(piece, first, buffer.data)
        if self.checked:
            if kept is None:
                raise ChecksumError(
                    "no sum is kept of it: it was put without checksum=True"
                )
            if kept != _sum(buffer):
                raise ChecksumError("what is there is not what was put")
        self._copy(task, buffer, first)


def _buffer(nbytes: int) -> NDArray[np.uint8]:
    """Return memory that begins where a page does."""
    return np.frombuffer(mmap.mmap(-1, nbytes), np.uint8)


def _sum(buffer: NDArray[np.uint8]) -> int:
    return zlib.crc32(buffer.data)


def _by_cpu(
    made: Plan, task: PieceTask, buffer: NDArray[np.uint8], base: int, is_put: bool
) -> None:
    """Copy a task's runs."""
    at = int(buffer.ctypes.data) - base
    src, dst = ([0], [at]) if is_put else ([at], [0])
    for extent in task.extents:
        run = extent.run(is_put=is_put)
        status = CopyWork(made, run, src, dst, mode=Mode.COPY).run()
        if status is not Status.DONE:
            raise StaleMemory(f"the copy ended as {status.name}")
