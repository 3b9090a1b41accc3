"""Small calls that tell: counts, tiles, blocks and repetitions to judge a plan with.

Counts are a few elements a chunk: equal, short at the end, unequal with empty parts.
They are cut into one to three tiles, for one block and for several, and called again,
so that staging is used again while somebody may still read it.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import NamedTuple

from stretto import collectives
from stretto.ir import Program
from stretto.plan import Move, Plan, Space
from stretto.testing.cases import shape_of
from stretto.testing.referee.calls import Call

__all__ = ["Scope", "cut", "everybody", "scopes", "touches_peers", "unequal"]


class Scope(NamedTuple):
    """Calls that follow one another, and by what they are run."""

    calls: tuple[Call, ...]
    threads: bool = False


def cut(plan: Plan, blocks: int) -> Plan:
    """Return the plan run by so many blocks."""
    return replace(plan, schedule=replace(plan.schedule, blocks=blocks))


def everybody(plan: Plan) -> frozenset[int]:
    """Return who is called in place when the plan is."""
    return frozenset(range(plan.num_ranks)) if plan.in_place else frozenset()


def touches_peers(plan: Plan) -> bool:
    """Return whether a rank reaches into another one's own buffers."""
    return any(
        loc.rank != rank and loc.space is not Space.STAGE
        for rank, _, _, step in plan.steps()
        if isinstance(step, Move)
        for loc in (*step.dsts, *step.srcs)
    )


def unequal(
    plan: Plan | Program, pattern: tuple[int, ...], extra: int = 0
) -> tuple[int, ...]:
    """Return counts: the i-th part has so many elements a chunk, in turn.

    The parts of a matrix are a circulant: each row begins one further.
    """
    kind = collectives.get(plan.collective)
    shape = shape_of(plan)
    parts, chunks = kind.num_parts(shape), kind.chunks_per_part(shape)
    m = shape.num_members
    turned = [i % m - i // m if parts == m * m else i for i in range(parts)]
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

    `in_place` says on which ranks, where it is not what the plan allows. `wide` yields
    many more.
    """
    here = everybody(plan) if in_place is None else in_place
    two = cut(plan, 2)

    def calls(
        by: Plan, counts: tuple[int, ...], most: int, times: int
    ) -> tuple[Call, ...]:
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
    if not wide:
        return
    for pattern in ((1, 2), (2, 1), (0, 1, 3), (3, 1, 0, 0), (5, 2, 1), (4,), (2,)):
        for extra in (0, 1, -1):
            counts = unequal(plan, pattern, extra)
            for blocks in (1, 2, 3):
                for most in (1, 2, 3, 8):
                    for threads in (False, True):
                        yield Scope(calls(cut(plan, blocks), counts, most, 2), threads)
    yield Scope(calls(plan, unequal(plan, (0,)), 1, 3))
