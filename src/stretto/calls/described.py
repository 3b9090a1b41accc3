"""From a verb's description and what a caller gave to a request, all of it checked.

Legend: n ranks, or the members among them.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from stretto import collectives
from stretto.arrays.operands import Operand
from stretto.calls.request import Caller, Request
from stretto.calls.verb import Holds, Verb
from stretto.collectives import Operator, storage
from stretto.ir import freeze

__all__ = ["request_of"]


def request_of(verb: Verb, who: Caller, given: Mapping[str, Any]) -> Request:
    """Return the request that a call makes."""
    if verb.x is Holds.NOTHING:
        return who.request(verb.collective, None, None, counts=())
    if "pairs" in given:
        return _permutation(who, given)
    if "split" in given:
        return _exchange(who, given)
    kind = collectives.get(verb.collective)
    root = given.get("root", who.rank)
    params = who.root(root) if kind.rooted else None
    source = _source(verb, who, given, root)
    sizes = _sizes(verb, who, given, source)
    target = _target(verb, who, given, source, sizes, root)
    one = source or target
    assert one is not None, "a rank has an input or an output"
    op = Operator.SUM
    if kind.reduces:
        op = who.operator(given["op"], one)
    if sizes is None:
        counts = _equal_counts(verb, who, one, root == who.rank)
    else:
        counts = sizes[0]
    return who.request(
        verb.collective,
        source,
        target,
        counts=counts,
        op=op,
        params=params,
        equal=not verb.unequal,
    )


def _source(
    verb: Verb, who: Caller, given: Mapping[str, Any], root: int
) -> Operand | None:
    """Return the input; the result replaces it where a call has no other output."""
    at_root = root == who.rank
    if verb.x_at_root and not at_root:
        return None
    replaced = verb.x is verb.out is Holds.WHOLE and given["out"] is None
    written = replaced and (at_root or not verb.out_at_root)
    return who.take(given["x"], "x", written=written)


def _sizes(
    verb: Verb, who: Caller, given: Mapping[str, Any], source: Operand | None
) -> tuple[tuple[int, ...], int] | None:
    """Return the counts of unequal parts, and of the output, when the input fits."""
    if not verb.unequal:
        return None
    n, has = who.num_members, None if source is None else source.count
    if verb.x is verb.out is Holds.PARTS:
        counts = who.counts(given["counts"], n * n)
        matrix = np.reshape(counts, (n, n))
        sent, received = (who.part(matrix.sum(axis=axis)) for axis in (1, 0))
        if sent != has:
            raise who.wrong(f"counts sum to {sent}; x has {has} elements")
        return counts, received
    counts = who.counts(given["counts"], n)
    if verb.x is Holds.PART:
        if who.part(counts) != has:
            raise who.wrong(
                f"counts[{who.place}] is {who.part(counts)}; x has {has} elements"
            )
        return counts, sum(counts)
    if has is not None and who.place is not None and sum(counts) != has:
        raise who.wrong(f"counts sum to {sum(counts)}; x has {has}")
    return counts, who.part(counts)


def _target(
    verb: Verb,
    who: Caller,
    given: Mapping[str, Any],
    source: Operand | None,
    sizes: tuple[tuple[int, ...], int] | None,
    root: int,
) -> Operand | None:
    """Return the output: what was given, the input itself, or a new array."""
    if verb.out_at_root and root != who.rank:
        return None
    out, in_x = given["out"], verb.x is verb.out is Holds.WHOLE
    if source is None:
        name, array = ("x", given["x"]) if in_x and out is None else ("out", out)
        if sizes is not None and array is None:
            if given["dtype"] is None:
                raise who.wrong("neither out nor dtype; want one, to know the elements")
            array = np.empty(sizes[1], storage(given["dtype"]))
        target = who.take(array, name, written=True)
        if sizes is not None and target.count != sizes[1]:
            raise who.wrong(f"out has {target.count} elements; want {sizes[1]}")
        return target
    if in_x and out is None:
        return source
    if sizes is not None:
        return who.target(source, out, (sizes[1],))
    if verb.out is Holds.PART:
        return who.target(source, out, who.divide(source))
    many = (who.num_members,) if verb.out is Holds.PARTS else ()
    return who.target(source, out, (*many, *source.shape))


def _equal_counts(
    verb: Verb, who: Caller, one: Operand, at_root: bool
) -> tuple[int, ...]:
    """Return the counts of equal parts; `one` is the input, or else the output."""
    if verb.x is verb.out is Holds.WHOLE:
        return (one.count,)
    holds = verb.out if verb.x_at_root and not at_root else verb.x
    count = one.count if holds is Holds.PART else math.prod(who.divide(one))
    return (count,) * who.num_members


def _exchange(who: Caller, given: Mapping[str, Any]) -> Request:
    """Return an all_to_all: each rank's part along one axis, joined along another."""
    split, concat = given["split"], given["concat"]
    source = who.take(given["x"], "x")
    if not split and not concat:
        who.divide(source)
    shape, rows = who.exchanged(source, split, concat)
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


def _permutation(who: Caller, given: Mapping[str, Any]) -> Request:
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
