"""Small calls that tell: counts, tiles, blocks and repetitions to judge a plan with.

Counts are a few elements a chunk: equal, short at the end, unequal with empty parts.
They are cut into one to three tiles, for one block and for several, and called again,
so that staging is used again while somebody may still read it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import product
from typing import NamedTuple, cast

from tests.checking.cases import shape_of
from tests.checking.referee.calls import Call

from stretto.compiler.plan import Move, Plan, Space
from stretto.program import collectives
from stretto.program.ir import Program

__all__ = ["Scope", "cut", "paired", "scopes", "touches_peers", "unequal"]


class Scope(NamedTuple):
    """Calls that follow one another, and by what they are run."""

    calls: tuple[Call, ...]
    threads: bool = False


def cut(plan: Plan, blocks: int) -> Plan:
    """Return the plan run by so many blocks."""
    return replace(plan, schedule=replace(plan.schedule, blocks=blocks))


def paired(plan: Plan, counts: tuple[int, ...]) -> frozenset[int]:
    """Return the ranks that a plan in place is run in place on, by so many elements.

    Those on which each part of the output lies over one of its own size; the others
    work on a copy of their input.
    """
    if not plan.in_place:
        return frozenset()
    ranks = frozenset(range(plan.num_ranks))
    if plan.collective == "permute":
        pairs = cast("Sequence[tuple[int, int]]", plan.params.get("pairs", ()))
        sends = {source for source, _ in pairs}
        apart = {b for a, b in pairs if b in sends and counts[a] != counts[b]}
        return ranks - apart
    if plan.collective == "all_to_all":
        members = list(shape_of(plan).members)
        m = len(members)
        return ranks - {
            members[p]
            for p in range(m)
            if any(counts[p * m + q] != counts[q * m + p] for q in range(m))
        }
    return ranks


def touches_peers(plan: Plan) -> bool:
    """Return whether a rank reaches into another one's own buffers."""
    return any(
        loc.rank != rank and loc.space is not Space.STAGE
        for rank, _, _, step in plan.steps()
        if isinstance(step, Move)
        for loc in (*step.dsts, *step.srcs)
    )


def unequal(
    plan: Plan | Program,
    pattern: tuple[int, ...],
    extra: int = 0,
    *,
    mirrored: bool = False,
) -> tuple[int, ...]:
    """Return counts: the i-th part has so many elements a chunk, in turn.

    The parts of a matrix are a circulant: each row begins one further, or (`mirrored`)
    one sooner, so that the matrix is its own transpose.
    """
    kind = collectives.get(plan.collective)
    shape = shape_of(plan)
    parts, chunks = kind.num_parts(shape), kind.chunks_per_part(shape)
    m = shape.num_members
    way = 1 if mirrored else -1
    turned = [i % m + way * (i // m) if parts == m * m else i for i in range(parts)]
    return tuple(max(0, pattern[i % len(pattern)] * chunks + extra) for i in turned)


def _short(plan: Plan) -> list[int]:
    """Return numbers of elements of a part that do not give each chunk one.

    They tell chunks apart that are equal otherwise: one has an element, the next none.
    """
    kind = collectives.get(plan.collective)
    chunks = kind.chunks_per_part(shape_of(plan))
    every = list(range(1, chunks))
    return every if chunks <= _FEW else [1, chunks // 3, chunks // 2, chunks - 1]


_FEW = 5


def scopes(
    plan: Plan,
    program: Program | None = None,
    *,
    in_place: frozenset[int] | None = None,
    wide: bool = False,
) -> Iterator[Scope]:
    """Yield the scopes that a plan is judged with, the most telling ones first.

    Plans in place are run so on the ranks that are `paired`, or on those of `in_place`
    if that is given; where peers reach into one another, all of them are, or none.
    `wide` yields many more.
    """
    mixed = in_place is not None or not (plan.in_place and touches_peers(plan))
    for scope in _every(plan, program, in_place, wide):
        if mixed or all(len(c.in_place) == plan.num_ranks for c in scope.calls):
            yield scope


def _every(
    plan: Plan, program: Program | None, in_place: frozenset[int] | None, wide: bool
) -> Iterator[Scope]:
    two = cut(plan, 2)

    def calls(
        by: Plan, counts: tuple[int, ...], most: int, times: int
    ) -> tuple[Call, ...]:
        here = paired(plan, counts) if in_place is None else in_place
        one = Call(plan=by, counts=counts, most=most, in_place=here, program=program)
        return (one,) * times

    steps = unequal(plan, (2, 3, 1))
    gaps = unequal(plan, (3, 0, 1, 2))
    ones = unequal(plan, (1,))
    several = len(ones) > 1
    yield Scope(calls(plan, unequal(plan, (3,)), 1, 1))
    if several:
        yield Scope(calls(plan, steps, 2, 1), threads=True)
        yield Scope(calls(plan, gaps, 1, 1))
    yield Scope(calls(plan, unequal(plan, (2,)), 99, 2))
    for total in _short(plan):
        yield Scope(calls(plan, unequal(plan, (0,), total), 1, 1))
    yield Scope(calls(plan, ones, 1, 3))
    yield Scope(calls(two, gaps if several else unequal(plan, (3,)), 1, 2))
    yield Scope(calls(plan, unequal(plan, (1,), 1), 2, 2), threads=True)
    if several:
        yield Scope(calls(plan, tuple(reversed(steps)), 8, 1))
    if several and plan.in_place:
        like = unequal(plan, (2, 0, 3, 1), mirrored=True)
        yield Scope(calls(plan, like, 2, 1), threads=True)
        yield Scope(calls(two, like, 1, 2))
    if not wide:
        return
    for pattern in ((1, 2), (2, 1), (0, 1, 3), (3, 1, 0, 0), (5, 2, 1), (4,), (2,)):
        for extra in (0, 1, -1):
            for mirrored in (False, True) if plan.in_place else (False,):
                counts = unequal(plan, pattern, extra, mirrored=mirrored)
                for blocks, most in product((1, 2, 3), (1, 2, 3, 8)):
                    twice = calls(cut(plan, blocks), counts, most, 2)
                    yield Scope(twice)
                    yield Scope(twice, threads=True)
    yield Scope(calls(plan, unequal(plan, (0,)), 1, 3))
