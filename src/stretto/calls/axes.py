"""Requests that are not of whole vectors or of parts in rank order.

An all_to_all along axes, and a permutation. Legend: n ranks.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from numbers import Integral
from typing import TYPE_CHECKING, Any

from stretto.arrays.operands import Operand
from stretto.calls.arguments import spell
from stretto.ir import freeze

if TYPE_CHECKING:
    from stretto.calls.request import Caller, Request

__all__ = ["exchange", "permutation"]


def exchange(who: Caller, given: Mapping[str, Any]) -> Request:
    """Return an all_to_all: each rank's part along one axis, joined along another."""
    split, concat = given["split"], given["concat"]
    source = who.take(given["x"], "x")
    if not split and not concat:
        who.divide(source)
    shape, rows = _exchanged(who, source, split, concat)
    target = who.target(source, given["out"], shape)
    n = who.num_members
    counts = (target.count // n,) * n**2
    request = who.request("all_to_all", source, target, counts=counts)
    if any(rows) and who.members:
        raise who.wrong(
            f"axes that move, by an algorithm among {who.members}; want split=0 and "
            f"concat=0"
        )
    if any(rows) and request.in_place:
        raise who.wrong("out overlaps x, with axes that move; want memory of its own")
    return replace(request, rows=rows if source.count else (0, 0))


def _axis(who: Caller, given: Any, x: Operand, name: str) -> int:
    """Return an axis of `x`, counted from its first."""
    at = int(given) if isinstance(given, Integral) else None
    if at is not None and at < 0:
        at += len(x.shape)
    if at is None or not 0 <= at < len(x.shape):
        raise who.wrong(
            f"{name}={spell(given)}; x has shape {x.shape}: want an axis below "
            f"{len(x.shape)}"
        )
    return at


def _exchanged(
    who: Caller, x: Operand, split: int, concat: int
) -> tuple[tuple[int, ...], tuple[int, int]]:
    """Return the shape of an all_to_all's result, and how parts lie in arrays.

    `x` is split along one axis; what comes is joined along another.
    """
    n, part = who.num_members, list(x.shape)
    split, concat = _axis(who, split, x, "split"), _axis(who, concat, x, "concat")
    if part[split] % n:
        raise who.wrong(
            f"x has shape {x.shape}; its axis {split}, {part[split]}, is not "
            f"divisible by {n} ranks"
        )
    part[split] //= n
    result = list(part)
    result[concat] *= n
    rows = [math.prod(part[axis:]) for axis in (split, concat)]
    whole = [math.prod(part[:axis]) == 1 for axis in (split, concat)]
    return tuple(result), (0 if whole[0] else rows[0], 0 if whole[1] else rows[1])


def permutation(who: Caller, given: Mapping[str, Any]) -> Request:
    """Return a permute: who sends to whom; ranks that nobody targets get zeros."""
    x, out = given["x"], given["out"]
    pairs = who.read("pairs", given["pairs"])
    moves = tuple((who.peer(a, "source"), who.peer(b, "target")) for a, b in pairs)
    for side, ranks in enumerate(zip(*moves, strict=True)):
        if len(set(ranks)) < len(ranks):
            role = ("source", "target")[side]
            raise who.wrong(f"pairs={moves}: a rank is a {role} more than once")
    source = who.take(x, "x", written=out is x and out is not None)
    target = who.target(source, out, source.shape)
    targeted = any(b == who.rank for _, b in moves)
    return who.request(
        "permute",
        source if any(a == who.rank for a, _ in moves) else None,
        target if targeted else None,
        counts=(source.count,) * who.num_ranks,
        params=freeze({"pairs": moves}),
        idle=None if targeted else target,
    )
