"""Every shipped algorithm, at every number of ranks and with telling parameters."""

from __future__ import annotations

import inspect
from collections.abc import Iterator

from stretto.compiler.plan import Plan
from stretto.program import algorithms, collectives
from stretto.program.collectives import Shape
from stretto.program.ir import Program
from stretto.program.lang import Algorithm

__all__ = ["SCHEDULES", "counts_for", "programs", "shape_of"]

SCHEDULES = (
    "push packets staged",
    "push bulk staged",
    "pull bulk staged",
    "push bulk zero_copy",
    "pull bulk zero_copy",
    "pull bulk zero_copy copy:push",
)
"""One schedule of every kind."""


def programs(num_ranks: int, only: str = "") -> Iterator[tuple[str, Program]]:
    """Yield (label, program) for the algorithms whose name contains `only`."""
    for name in algorithms.names():
        chosen = algorithms.get(name)
        if only in name and chosen.refuses(num_ranks) is None:
            for params in _params(chosen, num_ranks):
                told = " ".join(f"{k}={v}" for k, v in params.items())
                label = f"{name} n={num_ranks} {told}".strip()
                yield label, chosen.build(num_ranks, **params)  # type: ignore[arg-type]


def _params(chosen: Algorithm, n: int) -> Iterator[dict[str, object]]:
    accepted = inspect.signature(chosen.function).parameters
    if "root" in accepted:
        yield {"root": 0}
        if n > 1:
            yield {"root": n - 1}
    elif "pairs" in accepted:
        yield {"pairs": tuple((q, (q + 1) % n) for q in range(n))}
        if n > 1:
            yield {"pairs": ((0, n - 1),)}
    elif "group" in accepted:
        for g in range(1, n + 1):
            if n % g == 0:
                yield {"group": g}
    else:
        yield {}


def shape_of(program: Program | Plan) -> Shape:
    """Return the shape of a program's or plan's collective."""
    return Shape(
        num_ranks=program.num_ranks, split=program.split, params=program.params
    )


def counts_for(program: Program | Plan, elements: int) -> list[int]:
    """Return counts for a call, unequal where the collective has several parts."""
    parts = collectives.get(program.collective).num_parts(shape_of(program))
    return [elements + (i % 3 if parts > 1 else 0) for i in range(parts)]
