"""A put or a get: its parts, how far it is, and what became of it."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from stretto.errors import (
    ChecksumError,
    EngineLost,
    StaleMemory,
    TransferCancelled,
    TransferError,
    TransferTimeout,
)
from stretto.fabric.forks import Refuses
from stretto.trace import CallKind, observe
from stretto.transfer.copying.words import Job, Mode, Status
from stretto.transfer.copying.work import CopyWork
from stretto.transfer.links.counterpart import Counterpart
from stretto.transfer.links.link import notice
from stretto.transfer.loader import functions
from stretto.transfer.ports import LoopLike
from stretto.transfer.ways.order import Order
from stretto.transfer.ways.pending import Pending


def _nothing() -> None:
    """Stop nothing: all that is done for a transfer is done under its turn."""


TRANSFERS = "transfers of rank"
"""Where recordings have them, in place of a communicator."""
_PART_BYTES = 16 << 20
"""Bytes moved between looks at the clock and at the peer."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Stats:
    """What a transfer did."""

    path: str
    nbytes: int
    pieces: int
    """Runs of bytes that lie apart on either side."""
    seconds: float
    """From its start to its end."""

    @property
    def gb_per_s(self) -> float:
        """Return its rate, in 10^9 bytes a second."""
        return self.nbytes / max(self.seconds, 1e-9) / 1e9


def failure(
    kind: type[TransferError], why: str, *, peer: str, path: str, done: int = 0,
    blocks: int = 0,
) -> TransferError:  # fmt: skip
    """Return an error that says who, by which way, and how far it came."""
    error = kind(f"engine {peer!r}, {path}: {why}")
    error.peer, error.path = peer, path
    error.bytes_done, error.blocks_done = done, blocks
    return error


class Transfer(Pending[Stats]):
    """See `View.put`. It is begun when it is made; `wait` helps where it can."""

    def __init__(
        self, loop: LoopLike, peer: Counterpart | None, path: str, *, nbytes: int,
        pieces: int, notify: bytes = b"", deadline: float | None = None,
        checked: bool = False, word: NDArray[np.int64] | None = None,
        chunk_pages: Callable[[], NDArray[np.int64] | None] = lambda: None,
        holds: object = None,
    ) -> None:  # fmt: skip
        """`holds` is what must live as long as this.

        `chunk_pages` says in which pages of ours blocks lie, in the order of their
        moves; `word` is not 0 when the rest is not wanted.
        """
        who = "this engine" if peer is None else f"engine {peer.name!r}"
        super().__init__(loop, f"transfer with {who}, {path}")
        self.peer, self.path = peer, path
        self.nbytes, self.pieces, self.notify = nbytes, pieces, notify
        self.begun = time.monotonic()
        self.until = None if deadline is None else self.begun + deadline
        self.word = np.zeros(1, np.int64) if word is None else word
        self.checked = checked
        """Whether what arrived is compared with what was sent."""
        self.works: list[CopyWork] = []
        self.turn = threading.RLock()
        """Held by who moves its bytes: who takes it back, waits for that."""
        self.halt: Callable[[], None] = _nothing
        """Has what others do for it stopped; nothing comes when that returns."""
        self.how_far: Callable[[], tuple[int, int]] = self._by_works
        """What says how many bytes, and blocks, have come."""
        self._chunk_pages, self._holds = chunk_pages, holds

    @classmethod
    def of(cls, loop: LoopLike, order: Order, *, path: str = "", **how: Any) -> Self:
        """Return the transfer of an order, of which nothing has begun."""
        return cls(
            loop, order.peer, path or order.path.name, nbytes=order.nbytes,
            pieces=order.pieces, checked=order.checked, holds=order,
            chunk_pages=order.chunk_pages, **how,
        )  # fmt: skip

    def _by_works(self) -> tuple[int, int]:
        moved = sum(work.moved for work in self.works)
        return moved, sum(work.chunks_done for work in self.works)

    @property
    def stats(self) -> Stats:
        """Return what it did so far."""
        return self._result or self._stats(self.how_far()[0])

    def _stats(self, nbytes: int) -> Stats:
        seconds = time.monotonic() - self.begun
        return Stats(path=self.path, nbytes=nbytes, pieces=self.pieces, seconds=seconds)

    @property
    def peer_name(self) -> str:
        """Return the engine at the other end."""
        return "" if self.peer is None else self.peer.name

    def cancel(self) -> bool:
        """Take it back. What was under way here has stopped when this returns.

        Bytes that have arrived stay where they are; none comes to this process later.
        What a put has sent to another host may still arrive: that host's lease ends it.
        """
        if not self._is_done:
            self._loop.check()
        ended = self.stop(TransferCancelled, "cancelled")
        with self.turn:  # another may be ending it
            return ended

    def expire(self) -> None:
        """End it at its deadline, unless it has ended."""
        if not self.done():
            self.stop(*_ENDS[Status.LATE])

    def _calm(self) -> None:
        """Have nothing moved any more: whoever hears of its end may use the memory.

        The word is set when it is decided how it ends: sums are cut short by it, too.
        """
        self.word[0] = 1
        self.halt()
        with self.turn:  # who moves bytes sees the word, and lets go
            return

    def stop(self, kind: type[TransferError], why: str) -> bool:
        """End it with an error that says how far it came."""
        done, blocks = self.how_far()
        error = failure(
            kind, why, peer=self.peer_name, path=self.path, done=done, blocks=blocks
        )
        error.blocks_failed = self._failed(blocks)
        ended = self.fail(error)
        if ended:
            self._record(done, failed=True)
        return ended

    is_in_order = True
    """Whether the blocks that are through are the first of all."""

    def _failed(self, blocks: int) -> tuple[int, ...]:
        """Return our pages that are not known to be through; () without pages."""
        pages = self._chunk_pages()
        if pages is None:
            return ()
        left = np.unique(pages[blocks if self.is_in_order else 0 :])
        return tuple(int(page) for page in left if page >= 0)

    def complete(self) -> None:
        """End it well."""
        self._record(self.nbytes)
        self.finish(self._stats(self.nbytes))

    def end(self, status: Status, *, peer_says: bool = False, number: int = 0) -> None:
        """End it as a status says; `number` is the system's of what was refused."""
        if status is Status.DONE:
            self.complete()
            return
        kind, why = _ENDS[status]
        peer = self.peer
        if peer_says:
            why = _PEER_SAYS.get(status, why)
        elif status is Status.FAILED:
            why = f"{why}: {os.strerror(number)}"
            if peer is not None and peer.is_dead():
                kind, why = EngineLost, "its process has ended"
        if peer is not None and peer.lost:
            kind, why = EngineLost, peer.lost
        self.stop(kind, why)

    def _record(self, done: int, *, failed: bool = False) -> None:
        """Tell whoever records (`stretto.trace`) what was moved, and since when."""
        kind = CallKind(
            collective="transfer",
            nbytes=self.nbytes,
            algorithm=self.path,
            executor="transfer",
            text=self.what,
        )
        observe(TRANSFERS, kind, int(self.begun * 1e9), nbytes=done, failed=failed)

    def announce(self) -> None:
        """Notify the peer, if that is wanted, and end well."""
        if self.notify and self.peer is not None:
            try:
                self.peer.post(notice(self.notify))
            except EngineLost as e:
                self.fail(e)
                return
        self.complete()

    def _help(self, until: float | None) -> None:
        if self.works:
            self.move(until)

    def move(self, until: float | None = None) -> None:
        """Move what this process moves itself; another thread may be at it."""
        if not self.turn.acquire(blocking=until is None):
            return
        try:
            if not self.is_ending:
                self._move()
        finally:
            self.turn.release()

    def _move(self) -> None:
        for work in self.works:
            status = self._parts(work)
            if status is not Status.DONE:
                self.end(status, number=work.error)
                return
        if self.checked and (wrong := [w for w in self.works if not _same(w)]):
            self.stop(ChecksumError, f"{len(wrong)} of {len(self.works)} parts differ")
            return
        self.announce()

    def _parts(self, work: CopyWork) -> Status:
        each = max(1, work.rows * _PART_BYTES // max(1, work.nbytes))
        job = work.job
        while True:
            if self.until is not None and time.monotonic() > self.until:
                return Status.LATE
            if self.peer is not None and self.peer.lost:
                return Status.CANCELLED
            job[Job.STOP] = min(work.rows, int(job[Job.ROW]) + each)
            status = work.run()
            if status is not Status.DONE or job[Job.ROW] >= work.rows:
                return status


_ENDS: dict[Status, tuple[type[TransferError], str]] = {
    Status.CANCELLED: (TransferCancelled, "cancelled"),
    Status.STALE: (StaleMemory, "the memory was given to someone else meanwhile"),
    Status.FAILED: (TransferError, "the kernel refuses"),
    Status.DIFFERS: (ChecksumError, "what arrived is not what was sent"),
    Status.LATE: (TransferTimeout, "not done before its deadline"),
}
"""The error of each status but the one that is none."""
_PEER_SAYS = {
    Status.CANCELLED: "the peer took it back",
    Status.FAILED: "the peer refuses it",
}


def all_of(loop: LoopLike, transfers: Sequence[Transfer]) -> Pending[list[Stats]]:
    """Return what ends when all of these have, or one has failed."""
    whole: Pending[list[Stats]] = Pending(loop, f"{len(transfers)} transfers")
    left, lock = [len(transfers)], threading.Lock()

    def told() -> None:
        with lock:
            left[0] -= 1
            last = not left[0]
        wrong = next((t.error for t in transfers if t.error is not None), None)
        if wrong is not None:
            whole.fail(wrong)
        elif last:
            whole.finish([t.stats for t in transfers])

    for transfer in transfers:
        transfer.then(told)
    if not transfers:
        whole.finish([])
    return whole


def _same(work: CopyWork) -> bool:
    """Return whether both sides hold the same bytes."""
    return work.summed(Mode.SUM_SRC) == work.summed(Mode.SUM_DST)


class PreparedTransfer:
    """A transfer that is done each time it is called: what it costs is the copy.

    It returns when the bytes are there, and raises what a transfer raises.
    """

    def __init__(
        self, transfer: Transfer, record: NDArray[np.int64] | None, restart: Any,
        quick: Any = None,
    ) -> None:  # fmt: skip
        self._transfer, self._restart, self._quick = transfer, restart, quick
        works = transfer.works
        self._fast = len(works) == 1 and not transfer.checked
        self._peer, self._record = transfer.peer, record
        self._well = 1
        self._again: Callable[[int], int] = self._slowly
        self._words = 0
        """What that is called with."""
        self._announces = quick is not None and record is not None
        """Whether there is something to do when it has gone well."""
        if quick is not None:
            self._again, self._words, self._well = quick.call, quick.at, 0
        if not self._fast:
            return
        work = works[0]
        link = 0 if record is None or self._peer is None else self._peer.link.at
        note = 0 if record is None else int(record.ctypes.data)
        if self._peer is not None:
            work.job[Job.CANCEL] = self._peer.link.gone.ctypes.data
        job = int(work.job.ctypes.data)
        self._held = np.array([job, work.rows, link, note, 0], np.int64)
        compiled = functions()
        self._again = compiled.direct(compiled.again)
        self._words = int(self._held.ctypes.data)

    @property
    def pieces(self) -> int:
        """Return how many runs it moves."""
        return self._transfer.pieces

    def disown(self, error: EngineLost) -> None:
        """Be of no use in a child that this process forks."""
        self._again = Refuses(error)

    def __call__(self) -> None:
        """Do it."""
        said = self._again(self._words)
        if said != self._well or self._announces:
            self._other(said)

    def _slowly(self, words: int) -> int:
        self._restart().wait()
        return 1

    def _far(self, said: int) -> None:
        """Go on with what a peer has kept ready; it is announced, or it has failed."""
        status = self._quick.go_on(said)
        if status is Status.FAILED:  # there was no room, or it is not kept any more
            self._restart().wait()
        elif status is not Status.DONE:
            self._raise(status)
        elif self._record is not None and self._peer is not None:
            self._peer.post(self._record.tobytes())

    def _other(self, said: int) -> None:
        if self._quick is not None:
            self._far(said)
            return
        status, posted = Status(said >> 3), said & 7
        if status is not Status.DONE:
            self._raise(status)
        peer = self._peer
        assert peer is not None, "a notification goes to a peer"
        if posted == 0:
            assert self._record is not None, "there is something to post"
            peer.post(self._record.tobytes())
        else:
            peer.link.wake()

    def _raise(self, status: Status) -> None:
        """Raise what a transfer raises that ends so; it may be done again."""
        transfer = self._transfer
        transfer._is_done = transfer.is_ending = False
        transfer.end(status, number=transfer.works[0].error if transfer.works else 0)
        assert transfer._error is not None, "it did not go well"
        raise transfer._error
