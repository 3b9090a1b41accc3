"""Cut runs that are too long to be carried at once: the same way on both sides."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from stretto.transfer.plans.plan import Box, BoxRun, Plan


def pieces_of(made: Plan, box: Box, most: int) -> tuple[Box, ...]:
    """Return a box as boxes whose runs have at most so many bytes on either side."""
    each = max(1, most // max(made.src.itemsize, made.dst.itemsize))
    if box.run <= each:
        return (box,)
    count, rest = divmod(box.run, each)
    some = (0, count, each), (count * each, 1, rest)
    return tuple(_piece(made, box, *one) for one in some if one[2])


def parts(run: BoxRun, boxes: Sequence[tuple[Box, ...]]) -> Iterator[BoxRun]:
    """Yield a run as runs of pieces of its boxes."""
    if len(boxes) < 2:
        yield replace(run, boxes=boxes[0]) if boxes else run
        return
    whole = sum(box.rows * box.run for box in run.boxes)
    for some in boxes:
        elements = sum(box.rows * box.run for box in some)
        yield replace(run, boxes=some, nbytes=run.nbytes * elements // whole)


def _piece(made: Plan, box: Box, begin: int, many: int, size: int) -> Box:
    src, dst = made.src.itemsize, made.dst.itemsize
    step = ((many, size * src, size * dst),) if many > 1 else ()
    return replace(
        box,
        src_at=box.src_at + begin * src,
        dst_at=box.dst_at + begin * dst,
        axes=(*box.axes, *step),
        run=size,
    )
