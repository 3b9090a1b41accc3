"""When an output may lie over an input: in place, or not at all."""

from __future__ import annotations

from stretto.arrays import Operand
from stretto.errors import CallError
from stretto.program import collectives
from stretto.program.collectives import Shape, storage


def in_place(
    collective: str,
    shape: Shape,
    rank: int,
    x: Operand,
    out: Operand,
    counts: tuple[int, ...],
) -> bool:
    """Return whether output and input are the same memory, as is allowed."""
    (a, a_end), (b, b_end) = x.span, out.span
    if a >= b_end or b >= a_end:
        return False
    kind = collectives.get(collective)
    at = kind.in_place(shape, rank)
    own_part = kind.num_parts(shape) == shape.num_members and collective != "permute"
    before = sum(counts[: shape.place(rank)]) * storage(x.dtype).itemsize
    if not own_part:
        right, rule = a == b, "the same memory"
    elif at is None:
        right, rule = b == a + before, "its own part of x"
    else:
        right, rule = a == b + before, "x in its own part of out"
    if not right:
        raise CallError(
            f"out overlaps x, {b - a:+d} bytes from its start; want {rule} (in "
            f"place), or no overlap"
        )
    return True


def parts_match(
    collective: str, shape: Shape, rank: int, counts: tuple[int, ...]
) -> bool:
    """Return whether each part of the output lies over one of its own size.

    Only then are they the same elements, as plans in place are proved for.
    """
    kind = collectives.get(collective)
    if kind.splits_whole or len(set(counts)) <= 1:
        return True
    if kind.in_place(shape, rank) != 0:
        return True  # one is the rank's own part of the other: the same counts
    runs = kind.input_runs(shape, rank), kind.output_runs(shape, rank)
    inputs, outputs = (
        [first + i for start, stop, first in side for i in range(stop - start)]
        for side in runs
    )
    return all(counts[a] == counts[b] for a, b in zip(inputs, outputs, strict=False))
