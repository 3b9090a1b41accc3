"""Judge what a proof accepted by running it: on random numbers, in random orders."""

from __future__ import annotations

import numpy as np
from tests.checking.cases import counts_for, shape_of
from tests.checking.plan_runs.interleave import interleave

from stretto.compiler.plan import Plan
from stretto.errors import StrettoError
from stretto.program import collectives
from stretto.program.collectives import Array, Operator, SymbolRun
from stretto.program.ir import Program, Verified
from stretto.testing.interpret import interpret
from stretto.testing.oracle import expected

__all__ = ["plan_is_right", "program_is_right"]

_KIND = "int64"
_EACH, _TILE_BYTES = 6, 16
"""Elements of a chunk, in tiles of two: three epochs, so staging is used again."""


def _draw(program: Program | Plan, counts: list[int], seed: int) -> list[Array]:
    rng = np.random.default_rng(seed)
    kind, shape = collectives.get(program.collective), shape_of(program)
    sizes = kind.symbol_sizes(shape, np.asarray(counts), 8)
    return [
        rng.integers(0, 1 << 40, _elements(kind.input_runs(shape, rank), sizes))
        for rank in range(program.num_ranks)
    ]


def _elements(runs: tuple[SymbolRun, ...], sizes: Array) -> int:
    return sum(int(sizes[r.first : r.first + r.stop - r.start].sum()) for r in runs)


def _oracle(
    program: Program | Plan, inputs: list[Array], counts: list[int]
) -> list[Array]:
    return expected(
        program.collective,
        shape_of(program),
        inputs,
        dtype=_KIND,
        op=Operator.SUM,
        counts=counts,
    )


def program_is_right(program: Program, seed: int) -> bool:
    """Return whether a program computes its collective on random numbers."""
    counts = counts_for(program, 5 * program.num_ranks)
    inputs = _draw(program, counts, seed)
    try:
        got = interpret(program, inputs, dtype=_KIND, counts=counts)
    except (StrettoError, ValueError, AssertionError):
        return False
    return _same(got, _oracle(program, inputs, counts))


def _paired(counts: list[int], plan: Plan) -> list[int]:
    """Return counts of which each part has the size of those that it lies over."""
    kind, shape = collectives.get(plan.collective), shape_of(plan)
    parts = kind.chunks_per_part(shape)
    partners: list[tuple[int, int]] = []
    for rank in range(plan.num_ranks):
        sides = kind.input_runs(shape, rank), kind.output_runs(shape, rank)
        if kind.in_place(shape, rank) != 0 or not all(sides):
            continue
        partners += zip(*(_parts(side, parts) for side in sides), strict=False)
    found = list(counts)
    while any(found[a] != found[b] for a, b in partners):
        for a, b in partners:
            found[a] = found[b] = min(found[a], found[b])
    return found


def _parts(runs: tuple[SymbolRun, ...], chunks: int) -> list[int]:
    """Return the part of every chunk of a buffer."""
    return [(r.first + i) // chunks for r in runs for i in range(r.stop - r.start)]


def plan_is_right(plan: Plan, seed: int, tries: int = 4) -> bool:
    """Return whether a plan computes its collective in random orders, over epochs."""
    several = collectives.get(plan.collective).num_parts(shape_of(plan)) > 1
    counts = counts_for(plan, _EACH * (1 if several else plan.num_ranks * plan.split))
    if plan.in_place:  # what lies over each other has one size, or is not in place
        counts = _paired(counts, plan)
    inputs = _draw(plan, counts, seed)
    want = _oracle(plan, inputs, counts)
    for order in range(seed, seed + tries):
        try:
            got = interleave(
                Verified(plan),
                [part.copy() for part in inputs],
                dtype=_KIND,
                counts=counts,
                seed=order,
                in_place=plan.in_place,
                tile_bytes=_TILE_BYTES,
            )
        except StrettoError:
            return False
        if not _same(got, want):
            return False
    return True


def _same(got: list[Array], want: list[Array]) -> bool:
    return all(np.array_equal(a, b) for a, b in zip(got, want, strict=True))
