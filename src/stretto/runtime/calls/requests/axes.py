"""An all_to_all along axes: what shape it makes, and how parts lie in arrays."""

from __future__ import annotations

import math
from collections.abc import Sequence
from numbers import Integral

from stretto.errors import CallError
from stretto.runtime.calls.requests.arguments import spell


def exchanged(
    shape: Sequence[int], num_ranks: int, split: int, concat: int
) -> tuple[tuple[int, ...], tuple[int, int]]:
    """Return the shape of the result, and the elements of rows that lie together.

    An array is split along one axis; what comes is joined along another. 0: all do.
    """
    part = list(shape)
    split, concat = _axis(split, shape, "split"), _axis(concat, shape, "concat")
    if part[split] % num_ranks:
        raise CallError(
            f"x has shape {tuple(shape)}; its axis {split}, {part[split]}, is not "
            f"divisible by {num_ranks} ranks"
        )
    part[split] //= num_ranks
    result = list(part)
    result[concat] *= num_ranks
    rows = [math.prod(part[axis:]) for axis in (split, concat)]
    whole = [math.prod(part[:axis]) == 1 for axis in (split, concat)]
    return tuple(result), (0 if whole[0] else rows[0], 0 if whole[1] else rows[1])


def _axis(given: int, shape: Sequence[int], name: str) -> int:
    """Return an axis, counted from the first."""
    at = int(given) if isinstance(given, Integral) else None
    if at is not None and at < 0:
        at += len(shape)
    if at is None or not 0 <= at < len(shape):
        raise CallError(
            f"{name}={spell(given)}; x has shape {tuple(shape)}: want an axis below "
            f"{len(shape)}"
        )
    return at
