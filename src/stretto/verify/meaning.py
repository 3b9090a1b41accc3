"""What a program computes, to the last bit: the value of every chunk of every output.

Read line by line, without any of the checks of `promise`: the program was proved. A
plan must end with these very values, so that its result does not depend on how it is
run.
"""

from __future__ import annotations

from collections import defaultdict
from itertools import pairwise
from typing import TypeAlias

from stretto import collectives
from stretto.collectives import Shape
from stretto.ir import INPUT, OUTPUT, Op, Program, Ref, Spans
from stretto.verify.values import Value, Values

__all__ = ["Meaning", "meaning"]

Meaning: TypeAlias = list[Spans[Value]]
"""By rank: runs of its output; position p of a run holds `(expression, p + shift)`."""

_Held = dict[tuple[int, str], Spans[Value]]


def meaning(program: Program, values: Values) -> Meaning:
    """Return what every rank's output holds after the last line."""
    kind = collectives.get(program.collective)
    shape = Shape(
        num_ranks=program.num_ranks, split=program.split, params=program.params
    )
    held: _Held = defaultdict(Spans)
    for rank in range(program.num_ranks):
        for start, stop, _ in kind.input_runs(shape, rank):
            held[rank, INPUT].write(start, stop, (values.input(rank, 0)[0], 0))
    for op in program.ops:
        _assign(held, op, values)
    return [held[rank, OUTPUT] for rank in range(program.num_ranks)]


def _assign(held: _Held, op: Op, values: Values) -> None:
    """Store the combination of the sources, piece by piece, as values."""
    pieces = [_read(held, src) for src in op.srcs]
    if all(len(piece) == 1 for piece in pieces):
        expression, chunk = values.combine([piece[0][2] for piece in pieces])
        to = op.dst.start
        held[op.dst.rank, op.dst.buffer].write(
            to, op.dst.stop, (expression, chunk - to)
        )
        return
    cuts = sorted({0, op.dst.stop - op.dst.start}.union(*(_starts(p) for p in pieces)))
    found: list[tuple[int, int, Value]] = []
    at = [0] * len(pieces)
    for a, b in pairwise(cuts):
        parts: list[Value] = []
        for nth, piece in enumerate(pieces):
            while piece[at[nth]][1] <= a:
                at[nth] += 1
            expression, chunk = piece[at[nth]][2]
            parts.append((expression, chunk))
        found.append((a, b, values.combine(parts)))
    target, start = held[op.dst.rank, op.dst.buffer], op.dst.start
    for a, b, (expression, chunk) in found:
        target.write(start + a, start + b, (expression, chunk - start))


def _read(held: _Held, src: Ref) -> list[tuple[int, int, Value]]:
    """Return a reference's pieces by offset; a value begins at offset 0's chunk."""
    found = held[src.rank, src.buffer].read(src.start, src.stop)
    s = src.start
    return [(a - s, b - s, (e, s + shift)) for a, b, (e, shift) in found]


def _starts(pieces: list[tuple[int, int, Value]]) -> set[int]:
    return {a for a, _, _ in pieces}
