"""The programs that campaigns are about: those that ship, and their like in groups."""

from __future__ import annotations

import functools
from collections.abc import Iterator

from tests.checking.cases import SCHEDULES, programs
from tests.checking.groups import group_programs

from stretto.program.ir import Program

__all__ = ["catalogue", "listed"]


@functools.cache
def catalogue(most: int = 4) -> list[tuple[str, Program, str, bool]]:
    """Return every program of the catalogue with every schedule, in place and not."""
    return [
        (label, program, text, in_place)
        for n in range(1, most + 1)
        for label, program in _sources(n)
        for text in SCHEDULES
        for in_place in (False, True)
    ]


def _sources(num_ranks: int) -> Iterator[tuple[str, Program]]:
    yield from programs(num_ranks)
    yield from group_programs(num_ranks)


@functools.cache
def listed(num_ranks: int) -> list[tuple[str, Program]]:
    """Return every program of so many ranks, with its label."""
    return list(_sources(num_ranks))
