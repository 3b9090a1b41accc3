"""What a program computes, to the last bit: the value of every chunk of every output.

Read line by line, without any of the checks of `promise`: the program was proved. A
plan must end with these very values, so that its result does not depend on how it is
run.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import TypeAlias

from stretto.compiler.verify.values import Value, Values
from stretto.program import collectives
from stretto.program.collectives import Shape
from stretto.program.ir import INPUT, OUTPUT, Op, Program, Ref, Spans

Meaning: TypeAlias = list[Spans[Value]]
"""By rank: runs of its output; position p of a run holds `(expression, p + shift)`."""

_Held: TypeAlias = dict[tuple[int, str], Spans[Value]]
_Pieces: TypeAlias = list[tuple[int, int, Value]]


def meaning(program: Program, values: Values) -> Meaning:
    """Return what every rank's output holds after the last line."""
    kind = collectives.get(program.collective)
    shape = Shape.of(program)
    held: _Held = defaultdict(Spans)
    for rank in range(program.num_ranks):
        for start, stop, _ in kind.input_runs(shape, rank):
            held[rank, INPUT].write(start, stop, (values.input(rank, 0)[0], 0))
    for op in program.ops:
        _assign(held, op, values)
    return [held[rank, OUTPUT] for rank in range(program.num_ranks)]


def _assign(held: _Held, op: Op, values: Values) -> None:
    """Store the combination of the sources, piece by piece, as values."""
    dst, srcs = op.dst, op.srcs
    target = held[dst[:2]]
    pieces = [held[src[:2]].read(src.start, src.stop) for src in srcs]
    if len(srcs) == 1:
        by = dst.start - srcs[0].start
        found = pieces[0]
        if by:
            found = [(a + by, b + by, (e, shift - by)) for a, b, (e, shift) in found]
        target.write_all(found)
        return
    if max(map(len, pieces)) == 1:
        parts = [(e, a + shift) for [(a, _, (e, shift))] in pieces]
        expression, chunk = values.combine(parts)
        target.write(dst.start, dst.stop, (expression, chunk - dst.start))
        return
    target.write_all(list(_combined(dst.start, srcs, pieces, values)))


def _combined(
    start: int, srcs: Sequence[Ref], pieces: Sequence[_Pieces], values: Values
) -> Iterator[tuple[int, int, Value]]:
    """Yield the combinations of several sources: cut where any of them is."""
    cuts: set[int] = set()
    for src, piece in zip(srcs, pieces, strict=True):
        cuts.update([a - src.start for a, _, _ in piece])
    cuts.add(srcs[0].stop - srcs[0].start)
    at = [0] * len(pieces)
    for a, b in pairwise(sorted(cuts)):
        parts: list[Value] = []
        for nth, (src, piece) in enumerate(zip(srcs, pieces, strict=True)):
            chunk = src.start + a
            while piece[at[nth]][1] <= chunk:
                at[nth] += 1
            expression, shift = piece[at[nth]][2]
            parts.append((expression, chunk + shift))
        expression, chunk = values.combine(parts)
        yield start + a, start + b, (expression, chunk - start - a)
