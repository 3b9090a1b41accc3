"""Cut runs that are too long to be carried at once: the same way on both sides."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from stretto.transfer.plans.plan import Box, Plan, Run

__all__ = ["split"]


def split(made: Plan, runs: Sequence[Run], most: int) -> tuple[Run, ...]:
    """Return runs of at most so many bytes; what is left over is a run of its own."""
    return tuple(part for run in runs for part in _parts(made, run, most))


def _parts(made: Plan, run: Run, most: int) -> Iterator[Run]:
    long = run.boxes[0].run
    each = max(1, most // max(made.src.itemsize, made.dst.itemsize))
    if long <= each:
        yield run
        return
    count, rest = divmod(long, each)
    for begin, many, size in ((0, count, each), (count * each, 1, rest)):
        if size:
            boxes = tuple(_cut(made, box, begin, many, size) for box in run.boxes)
            yield replace(run, boxes=boxes, nbytes=run.nbytes // long * many * size)


def _cut(made: Plan, box: Box, begin: int, many: int, size: int) -> Box:
    src, dst = made.src.itemsize, made.dst.itemsize
    step = ((many, size * src, size * dst),) if many > 1 else ()
    return replace(
        box,
        src_at=box.src_at + begin * src,
        dst_at=box.dst_at + begin * dst,
        axes=(*box.axes, *step),
        run=size,
    )
