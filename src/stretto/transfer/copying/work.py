"""A transfer's words, made once and run as a whole, or part by part."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from stretto.transfer.copying.convert import sizes, table
from stretto.transfer.copying.words import AXES_AT, PIECES, Job, Mode, Status, boxes_of
from stretto.transfer.loader import functions
from stretto.transfer.plans import BoxRun, Plan

_LARGE = 4 << 20
"""Bytes from which copies go past the caches."""
_CHECK = 1 << 20

never = np.zeros(1, np.int64)
"""The word of what is never cancelled."""


class CopyWork:
    """One run of boxes between two lists of tensors."""

    is_on_gpu = False
    """Whether a side of it is out of the CPU's reach."""

    def __init__(
        self, plan: Plan, run: BoxRun, src: Sequence[int], dst: Sequence[int], *,
        mode: Mode = Mode.COPY, pid: int = 0, cancel: NDArray[np.int64] = never,
        guard: tuple[int, int, int] = (0, 0, 0),
    ) -> None:  # fmt: skip
        """Prepare to move what `run` says; addresses are those of whoever has them.

        `guard`: see `guard`.
        """
        job = self.job = np.zeros(Job.END, np.int64)
        self._held: list[Any] = [run, cancel]
        self._convert(plan, mode)
        self._plan, self._chunks, self._dst_chunks = plan, run.src_at, run.dst_at
        self._src = np.array(src, np.int64)
        self._dst = np.array(dst, np.int64)
        self.nbytes = run.nbytes
        job[Job.MODE], job[Job.PID], job[Job.NUM_BOXES] = mode, pid, len(run.boxes)
        job[Job.SRC_BASES] = self._src.ctypes.data
        job[Job.DST_BASES] = self._dst.ctypes.data
        job[Job.SRC_AT] = run.src_at.ctypes.data
        job[Job.DST_AT] = run.dst_at.ctypes.data
        job[Job.STREAM] = run.nbytes >= _LARGE
        job[Job.CHECK], job[Job.CANCEL] = _CHECK, cancel.ctypes.data
        job[Job.MARK], job[Job.EPOCH], job[Job.WANT] = guard
        src_item, dst_item = plan.src.itemsize, plan.dst.itemsize
        job[Job.SRC_ITEM], job[Job.DST_ITEM] = src_item, dst_item
        self._boxes, each = boxes_of(run.boxes, src_item, dst_item)
        job[Job.BOXES] = self._boxes.ctypes.data
        self.rows, self.chunk_rows = each * len(run.src_at), max(1, each)
        job[Job.CHUNK_ROWS], job[Job.STOP] = self.chunk_rows, self.rows
        if mode in (Mode.WRITE, Mode.READ):
            lists = np.zeros((2, 2 * PIECES), np.int64)
            self._held.append(lists)
            job[Job.LOCAL], job[Job.REMOTE] = lists[0].ctypes.data, lists[1].ctypes.data
        self._at = int(job.ctypes.data)

    def _convert(self, plan: Plan, mode: Mode) -> None:
        src, dst = plan.src.dtype, plan.dst.dtype
        if src == dst or mode is Mode.PACK:
            return
        found = table(src, dst)
        self._held.append(found)
        self.job[Job.CONVERT] = sizes(src, dst)
        self.job[Job.TABLE] = found.ctypes.data

    def guard(self, mark: int, epoch: int, want: int) -> None:
        """Say at an address that we write, if the epoch at another is still so."""
        self.job[Job.MARK], self.job[Job.EPOCH], self.job[Job.WANT] = mark, epoch, want

    def mark(self, at: int) -> None:
        """Say at another address that we write."""
        self.job[Job.MARK] = at

    @property
    def converts(self) -> bool:
        """Return whether elements are of another type on the other side."""
        return self._plan.src.dtype != self._plan.dst.dtype

    @property
    def guarded(self) -> tuple[int, int]:
        """Return the address of the memory's epoch, or 0, and what it must be."""
        return int(self.job[Job.EPOCH]), int(self.job[Job.WANT])

    def run(self) -> Status:
        """Move what is left."""
        return Status(functions().run(self._at))

    def part(self, first: int, stop: int, cursor: int) -> Status:
        """Move these runs only, from or to a dense piece of memory."""
        job = self.job
        job[Job.ROW], job[Job.STOP], job[Job.CURSOR] = first, stop, cursor
        return self.run()

    @property
    def row_bytes(self) -> int:
        """Return how long a run is at the source: all runs of a plan are alike."""
        return int(self._boxes[0, 4])

    @property
    def chunk_bytes(self) -> int:
        """Return how many bytes a chunk has at the source."""
        return self.chunk_rows * self.row_bytes

    @property
    def packed_bytes(self) -> int:
        """Return how many bytes all runs have at the source."""
        return self.rows * self.row_bytes

    def source_of(self, row: int) -> int:
        """Return where a run lies at the source."""
        chunk, inside = divmod(row, self.chunk_rows)
        for box in self._boxes:
            if inside >= box[6]:
                inside -= int(box[6])
                continue
            at = int(self._src[box[0]] + box[2] + self._chunks[chunk])
            for count, step, _ in box[AXES_AT:].reshape(-1, 3)[::-1]:
                inside, nth = divmod(inside, int(count))
                at += nth * int(step)
            return at
        raise AssertionError("there is no such run")

    def places(self, *, is_source: bool) -> NDArray[np.int64]:
        """Return where all runs lie on a side, in their order."""
        side = 0 if is_source else 1
        bases = self._src if is_source else self._dst
        inside = []
        for box in self._boxes[: int(self.job[Job.NUM_BOXES])]:
            at = np.array([bases[box[side]] + box[2 + side]], np.int64)
            for count, *steps in box[AXES_AT:].reshape(-1, 3):
                if count != 1:
                    step = np.arange(count, dtype=np.int64) * steps[side]
                    at = (at[:, None] + step).reshape(-1)
            inside.append(at)
        chunks = self._chunks if is_source else self._dst_chunks
        return (chunks[:, None] + np.concatenate(inside)).reshape(-1)

    def summed(self, mode: Mode) -> int:
        """Return the sum of all bytes of a side, in the order of the runs."""
        held = self.job.copy()
        self.job[Job.MODE], self.job[Job.ROW], self.job[Job.SUM] = mode, 0, 0
        self.job[Job.STOP] = self.rows
        self.job[Job.MARK] = self.job[Job.EPOCH] = 0
        self.run()
        total = int(self.job[Job.SUM])
        self.job[:] = held
        return total

    @property
    def chunks_done(self) -> int:
        """Return how many chunks have been moved in full.

        What the kernel moves is listed before that; it may refuse what is listed.
        """
        rows = int(self.job[Job.ROW])
        if self.job[Job.MODE] in (Mode.READ, Mode.WRITE):
            rows = min(rows, self.moved // self.row_bytes)
        return rows // self.chunk_rows

    @property
    def moved(self) -> int:
        """Return how many bytes have been stored at the destination."""
        return int(self.job[Job.MOVED])

    @property
    def error(self) -> int:
        """Return the system's number of what the kernel refused."""
        return int(self.job[Job.ERROR])
