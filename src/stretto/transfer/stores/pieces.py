"""From a plan's runs to the pieces of a volume: which bytes, and of which pages."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from stretto.transfer.plans import Box, BoxRun, Plan
from stretto.transfer.stores.store import Piece, Volume

Words = NDArray[np.int64]


@dataclass(frozen=True, slots=True, kw_only=True)
class Extent:
    """Runs of one length between our memory and a piece."""

    ours: Words
    """Addresses."""
    begin: Words
    """Bytes from where the piece begins."""
    elements: int

    def run(self, *, is_put: bool) -> BoxRun:
        """Return them as what the copying loops take."""
        box = Box(src_part=0, dst_part=0, src_at=0, dst_at=0, axes=(),
                  run=self.elements)  # fmt: skip
        src, dst = (self.ours, self.begin) if is_put else (self.begin, self.ours)
        return BoxRun(boxes=(box,), src_at=src, dst_at=dst, nbytes=0)


@dataclass(frozen=True, slots=True, kw_only=True)
class PieceTask:
    """What is moved to or from one piece."""

    piece: Piece
    extents: tuple[Extent, ...]
    first: int
    stop: int
    """The bytes of the piece between which all of it lies."""
    nbytes: int
    """Of the store's elements that are moved."""
    pages: Words
    """Pages of ours that have a part in it."""

    @property
    def is_dense(self) -> bool:
        """Return whether every byte between `first` and `stop` is moved."""
        return self.nbytes == self.stop - self.first

    @property
    def is_whole(self) -> bool:
        """Return whether every byte of the piece is moved."""
        return self.nbytes == self.piece.nbytes


@dataclass(slots=True)
class _Rows:
    """All runs of a transfer, spelled out."""

    ours: Words
    part: Words
    at: Words
    page: Words
    count: Words
    """Elements."""


def _spelled(
    run: BoxRun, bases: Sequence[int], shift: int, pages: Words, *, is_put: bool
) -> _Rows:
    ours, part, at, page = [], [], [], []
    mine, theirs = (run.src_at, run.dst_at) if is_put else (run.dst_at, run.src_at)
    for box in run.boxes:
        a, b = mine[:, None], theirs[:, None]
        for count, src, dst in box.axes:
            step, far = (src, dst) if is_put else (dst, src)
            steps = np.arange(count, dtype=np.int64)
            a = (a[:, :, None] + step * steps).reshape(len(mine), -1)
            b = (b[:, :, None] + far * steps).reshape(len(mine), -1)
        our_part, our_at = (
            (box.src_part, box.src_at) if is_put else (box.dst_part, box.dst_at)
        )
        far_part, far_at = (
            (box.dst_part, box.dst_at) if is_put else (box.src_part, box.src_at)
        )
        ours.append((a + (bases[our_part] + our_at)).reshape(-1))
        at.append((b + (shift + far_at)).reshape(-1))
        part.append(np.full(a.size, far_part, np.int64))
        page.append(np.repeat(pages, a.shape[1]))
    total = sum(map(len, ours))
    return _Rows(
        ours=np.concatenate(ours), part=np.concatenate(part), at=np.concatenate(at),
        page=np.concatenate(page), count=np.full(total, run.boxes[0].run, np.int64),
    )  # fmt: skip


def _cut(rows: _Rows, piece: int, ours_item: int, item: int) -> _Rows:
    """Return the same, with no run across the end of a piece."""
    done: list[tuple[Words, ...]] = []
    left = (rows.ours, rows.part, rows.at, rows.page, rows.count)
    while len(left[0]):
        ours, part, at, page, count = left
        fits = np.minimum(count, (piece - at % piece) // item)
        done.append((ours, part, at, page, fits))
        goes_on = fits < count
        left = (
            (ours + fits * ours_item)[goes_on],
            part[goes_on],
            (at + fits * item)[goes_on],
            page[goes_on],
            (count - fits)[goes_on],
        )
    columns = [np.concatenate(column) for column in zip(*done, strict=True)]
    return _Rows(*columns)


def tasks(
    made: Plan, runs: Sequence[BoxRun], bases: Sequence[int], volume: Volume,
    pages_of: Sequence[Words], *, shift: int, is_put: bool,
) -> Iterator[PieceTask]:  # fmt: skip
    """Yield what is to be moved, piece by piece; `pages_of` are our pages of chunks.

    `bases` are addresses of our tensors, `shift` is where those of the volume begin.
    """
    ours, theirs = (made.src, made.dst) if is_put else (made.dst, made.src)
    item = theirs.itemsize
    parts = [
        _cut(
            _spelled(run, bases, shift, pages, is_put=is_put),
            volume.piece,
            ours.itemsize,
            item,
        )
        for run, pages in zip(runs, pages_of, strict=True)
    ]
    if not parts:
        return
    columns = [
        np.concatenate([getattr(p, name) for p in parts])
        for name in ("part", "at", "ours", "page", "count")
    ]
    order = np.lexsort((columns[1], columns[0]))
    part, at, our, page, count = (column[order] for column in columns)
    number = at // volume.piece
    changes = np.flatnonzero((np.diff(part) != 0) | (np.diff(number) != 0)) + 1
    bounds = [0, *changes.tolist(), len(part)]
    for low, high in itertools.pairwise(bounds):
        here = slice(low, high)
        begin, length = at[here] % volume.piece, count[here]
        extents = tuple(
            Extent(
                ours=np.ascontiguousarray(our[here][length == n]),
                begin=np.ascontiguousarray(begin[length == n]), elements=int(n),
            )
            for n in np.unique(length)
        )  # fmt: skip
        yield PieceTask(
            piece=volume.piece_of(int(part[low]), int(number[low])), extents=extents,
            first=int(begin[0]), stop=int((begin + length * item).max()),
            nbytes=int(length.sum()) * item, pages=np.unique(page[here]),
        )  # fmt: skip
