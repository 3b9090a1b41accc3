"""Sums over a fixed number of shards: the same bits on 1, 2, 4 or 8 ranks.

A sum of floats depends on the order of its terms, and so a model's on how many ranks
share it. Cut what is summed (the k of a matmul, a batch) into a fixed number of shards,
one partial sum each, and add those as a tree: neighbours, then neighbouring sums, each
rounded. A rank adds the shards that it holds (`add_pairs`); ranks add what they have in
the same way (`bits="pairs"`). So the tree is the same however many ranks there are.

    comm.all_reduce(add_pairs(parts), bits="pairs")    # what `all_reduce` here does
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from stretto.errors import CallError

__all__ = ["add_pairs", "all_reduce", "check_shards", "reduce_scatter"]


def add_pairs(parts: Any) -> Any:
    """Return the sum of 1, 2, 4, ... arrays: neighbours, then neighbouring sums.

    Each sum is rounded to their type. Of one array it is that one, not a copy.
    """
    level: Sequence[Any] = list(parts)
    if not level or len(level) & (len(level) - 1):
        raise CallError(f"add_pairs: {len(level)} parts; want 1, 2, 4, 8, ...")
    while len(level) > 1:
        level = [level[i] + level[i + 1] for i in range(0, len(level), 2)]
    return level[0]


def all_reduce(comm: Any, parts: Any, *, shards: int = 8, out: Any = None) -> Any:
    """Return the sum of all shards, of which this rank has its part, in rank order.

    `parts` has shards / ranks arrays along its first axis, each of the result's shape.
    """
    mine, out = _summed(comm, "all_reduce", parts, shards, out)
    return comm.all_reduce(mine, out=out, bits="pairs")


def reduce_scatter(comm: Any, parts: Any, *, shards: int = 8, out: Any = None) -> Any:
    """Return this rank's part, along the first axis of each, of the sum of all shards.

    `parts` is as for `all_reduce`.
    """
    mine, _ = _summed(comm, "reduce_scatter", parts, shards, parts)
    return comm.reduce_scatter(mine, out=out, bits="pairs")


def check_shards(comm: Any, verb: str, shards: int, has: int | None = None) -> int:
    """Return how many shards each rank has; CallError: that is no tree."""
    n = int(comm.num_ranks)
    wrong = shards < 1 or shards & (shards - 1) or shards % n
    if wrong or has not in (None, shards // n):
        parts = "" if has is None else f"{has} parts on each of "
        raise CallError(
            f"rank {comm.rank}: shards.{verb}: {parts}{n} ranks, and shards={shards}; "
            "want a power of two of shards, as many on every rank"
        )
    return shards // n


def _summed(comm: Any, verb: str, parts: Any, shards: int, out: Any) -> tuple[Any, Any]:
    """Return the sum of this rank's shards, and where the result goes: not over it."""
    if not hasattr(parts, "__len__"):
        raise CallError(
            f"rank {comm.rank}: shards.{verb}: parts is a {type(parts).__name__}; want "
            "shards / ranks arrays, or one with these along its first axis"
        )
    check_shards(comm, verb, shards, len(parts))
    mine = add_pairs(parts)
    if out is None and len(parts) == 1:  # it is the caller's own
        mine = mine.clone() if hasattr(mine, "clone") else mine.copy()
    return mine, out
