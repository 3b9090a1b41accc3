"""What the copying loops read: a plan and a transfer, in 64-bit words.

A box is `BOX_WORDS` words: its tensors, where it begins, how long its runs are on both
sides, how many there are, and its axes, the slowest first, filled up with ones.
"""

from __future__ import annotations

import enum
import functools
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from stretto.fabric.jit.words import Words
from stretto.transfer.layouts.layout import MOST_AXES
from stretto.transfer.plans import Box

AXES_AT = 7
"""The word at which a box's axes begin: how many, source distance, destination's."""
DEPTH = MOST_AXES + 1  # one more where long runs are cut
BOX_WORDS = AXES_AT + 3 * DEPTH


class Mode(enum.IntEnum):
    """Who moves the bytes of a run."""

    COPY = 0
    """This process: both sides are mapped here."""
    WRITE = 1
    """The kernel, into another process."""
    READ = 2
    """The kernel, out of another process."""
    PACK = 3
    """This process, into one dense piece, one run after the other."""
    UNPACK = 4
    """This process, out of such a piece."""
    SUM_SRC = 5
    """Nobody: the source's bytes are summed."""
    SUM_DST = 6
    """Nobody: the destination's bytes are summed."""


class Status(enum.IntEnum):
    """How a call of the loops ended."""

    DONE = 0
    CANCELLED = 1
    STALE = 2
    """The memory has been given to someone else."""
    FAILED = 3
    """The kernel refused; the word ERROR says why."""
    DIFFERS = 4
    """What has arrived is not what was sent."""
    LATE = 5
    """Its deadline has passed."""


class Job(Words):
    """Words of a transfer."""

    MODE = 0
    BOXES = 1
    NUM_BOXES = 2
    SRC_BASES = 3
    DST_BASES = 4
    """Addresses of each tensor, in the memory of whoever has it."""
    SRC_AT = 5
    DST_AT = 6
    """For each chunk, where it begins in every tensor."""
    CHUNK_ROWS = 7
    ROW = 8
    """The next run: what lies before has been moved."""
    STOP = 9
    """The run to stop before."""
    CURSOR = 10
    """Where the dense piece goes on."""
    PID = 11
    LOCAL = 12
    REMOTE = 13
    """Addresses of lists for the kernel, `PIECES` pairs each."""
    CONVERT = 14
    """0: bytes are copied; else an element is converted, see `convert`."""
    TABLE = 15
    SRC_ITEM = 16
    DST_ITEM = 17
    STREAM = 18
    """Whether runs go past the caches."""
    ERROR = 19
    MOVED = 20
    """Bytes stored at the destination."""
    SUM = 21
    CANCEL = 22
    """Address of a word: not 0 when the rest is not wanted."""
    MARK = 23
    """Address of a word that says that somebody writes, or 0."""
    EPOCH = 24
    """Address of the memory's epoch, or 0."""
    WANT = 25
    """The epoch that the memory had when it was named."""
    CHECK = 26
    """Bytes between looks at CANCEL."""
    LISTED = 27
    WAITING = 28
    """Runs, and bytes, that the kernel is still to be given."""
    END = 29


PIECES = 512
"""Runs that the kernel is given at once."""


@functools.lru_cache(maxsize=512)
def boxes_of(
    boxes: tuple[Box, ...], src_item: int, dst_item: int
) -> tuple[NDArray[np.int64], int]:
    """Return boxes as words, and how many runs they have together."""
    words = np.ones((max(1, len(boxes)), BOX_WORDS), np.int64)
    for row, box in zip(words, boxes, strict=False):
        row[:AXES_AT] = (
            box.src_part, box.dst_part, box.src_at, box.dst_at,
            box.run * src_item, box.run * dst_item, box.rows,
        )  # fmt: skip
        axes: Sequence[tuple[int, int, int]] = box.axes
        fill = [(1, 0, 0)] * (DEPTH - len(axes))
        row[AXES_AT:] = np.array([*fill, *axes], np.int64).reshape(-1)
    return words, sum(box.rows for box in boxes)
