"""Boxes: ranges along all axes of a tensor, and whether some of them are all of it.

D axes of a tensor. A box has a pair (start, stop) for each; of no axes it is a scalar.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence

import numpy as np

__all__ = [
    "Box", "are_apart", "common", "cut", "rows", "said", "volume", "whole", "within",
]  # fmt: skip

Box = tuple[tuple[int, int], ...]


def whole(shape: Sequence[int]) -> Box:
    """Return all of a tensor."""
    return tuple((0, int(size)) for size in shape)


def volume(box: Box) -> int:
    """Return how many elements a box has."""
    return math.prod(max(0, stop - start) for start, stop in box)


def within(inner: Box, outer: Box) -> bool:
    """Return whether one box lies in another."""
    return all(x <= a <= b <= y for (a, b), (x, y) in zip(inner, outer, strict=True))


def common(one: Box, other: Box) -> Box | None:
    """Return what two boxes have in common; None: nothing."""
    found = []
    for (a, b), (x, y) in zip(one, other, strict=True):
        low, high = max(a, x), min(b, y)
        if low >= high:
            return None
        found.append((low, high))
    return tuple(found)


def are_apart(boxes: Sequence[Box]) -> bool:
    """Return whether no two boxes have an element in common."""
    some = sorted(boxes)
    if len(set(some)) < len(some):
        return False
    if len(some) < 2:
        return True
    ends = np.array(some, np.int64)
    first, last = ends[:, :, 0], ends[:, :, 1]
    for i, low in enumerate(range(1, len(some))):
        rest = slice(low, None)
        if ((first[rest] < last[i]) & (first[i] < last[rest])).all(axis=1).any():
            return False
    return True


def cut(box: Box, others: Sequence[Box]) -> Iterator[Box]:
    """Yield a box in parts that each of the others holds wholly or not at all."""
    ends = []
    for axis, (start, stop) in enumerate(box):
        edges = {e for other in others for e in other[axis] if start < e < stop}
        ends.append(list(itertools.pairwise(sorted({start, stop, *edges}))))
    yield from itertools.product(*ends)


def rows(box: Box, most: int) -> list[Box]:
    """Return a box in parts of whole rows, of so many elements or of one row."""
    if volume(box) <= most:
        return [box]
    (start, stop), rest = box[0], box[1:]
    step = max(1, most // volume(rest))
    return [((a, min(a + step, stop)), *rest) for a in range(start, stop, step)]


def said(box: Box) -> str:
    """Return a box for people, as an index."""
    return "[" + ", ".join(f"{start}:{stop}" for start, stop in box) + "]"
