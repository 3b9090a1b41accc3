"""Programs with one thing wrong: what a proof must not let pass.

Every mutant drops, doubles, swaps or retargets one operation. Some compute the same all
the same (a copy done twice); whoever accepts one must be right about it, which
`interpret` can judge. Mutants of plans are in `plan_mutants`.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from stretto.program.ir import INPUT, Op, Program, Ref

__all__ = ["program_mutants"]


def program_mutants(program: Program) -> Iterator[tuple[str, Program]]:
    """Yield what was done and the program with it."""
    ops = program.ops
    for i, op in enumerate(ops):
        yield f"drop {i}", replace(program, ops=ops[:i] + ops[i + 1 :])
        yield f"double {i}", replace(program, ops=(*ops[:i], op, *ops[i:]))
        if i + 1 < len(ops):
            swapped = (*ops[:i], ops[i + 1], op, *ops[i + 2 :])
            yield f"swap {i}", replace(program, ops=swapped)
        for what, other in _retargeted(program, op):
            changed = (*ops[:i], other, *ops[i + 1 :])
            yield f"{what} {i}", replace(program, ops=changed)


def _retargeted(program: Program, op: Op) -> Iterator[tuple[str, Op]]:
    n = program.num_ranks
    dst = op.dst
    yield "other rank", op._replace(dst=dst._replace(rank=(dst.rank + 1) % n))
    yield "other chunk", op._replace(dst=_next(dst))
    for j, src in enumerate(op.srcs):
        sources = list(op.srcs)
        sources[j] = src._replace(rank=(src.rank + 1) % n)
        yield f"other source {j} of", op._replace(srcs=tuple(sources))
        sources[j] = _next(src)
        yield f"other source chunk {j} of", op._replace(srcs=tuple(sources))
        if len(op.srcs) > 1:
            rest = op.srcs[:j] + op.srcs[j + 1 :]
            yield f"without source {j}", op._replace(srcs=rest)
        sources[j] = src._replace(buffer=INPUT)
        yield f"input for source {j} of", op._replace(srcs=tuple(sources))


def _next(ref: Ref) -> Ref:
    """Return the chunks before, or after at the start of a buffer."""
    by = -1 if ref.start else 1
    return ref._replace(start=ref.start + by, stop=ref.stop + by)
