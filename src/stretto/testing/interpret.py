"""The reference interpreter: run a program line by line, as one thread would.

It is the second link of the oracle chain: slow, plain, and exact about rounding. What
an executor computes must equal it bit for bit.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from stretto.errors import CallError, UndefinedError
from stretto.program import collectives
from stretto.program.collectives import (
    Array,
    Operator,
    Shape,
    SymbolRun,
    combine,
    finish,
    storage,
)
from stretto.program.ir import INPUT, OUTPUT, Program, Ref, spell_op

_Chunks = list[Array | None]
_Memory = dict[tuple[int, str], _Chunks]


def _sizes(
    program: Program, counts: Sequence[int], itemsize: int, *, outputs: bool
) -> list[list[int]]:
    """Return the elements of every chunk of every rank's input or output."""
    kind = collectives.get(program.collective)
    shape = Shape.of(program)
    symbols = kind.symbol_sizes(shape, np.asarray(counts), itemsize)
    side = kind.output_runs if outputs else kind.input_runs
    return [
        [int(symbols[i]) for i in _symbols(side(shape, rank))]
        for rank in range(program.num_ranks)
    ]


def _symbols(runs: Sequence[SymbolRun]) -> list[int]:
    return [run.first + i for run in runs for i in range(run.stop - run.start)]


def input_counts(program: Program, counts: Sequence[int]) -> list[int]:
    """Return how many elements every rank passes; 0 where it has no input."""
    return [sum(sizes) for sizes in _sizes(program, counts, 1, outputs=False)]


def output_counts(program: Program, counts: Sequence[int]) -> list[int]:
    """Return how many elements every rank gets; 0 where it has no output."""
    return [sum(sizes) for sizes in _sizes(program, counts, 1, outputs=True)]


def interpret(
    program: Program,
    inputs: Sequence[Array],
    *,
    dtype: str,
    op: Operator | str = Operator.SUM,
    counts: Sequence[int],
) -> list[Array]:
    """Return every rank's flat output.

    `inputs` are flat, in the storage type of `dtype`, empty where a rank has none;
    `counts` are the elements of every part, as the collective's `num_parts` says.
    """
    operator = Operator.named(op)
    stored = storage(dtype)
    memory: _Memory = {}
    layout_in = _sizes(program, counts, stored.itemsize, outputs=False)
    layout_out = _sizes(program, counts, stored.itemsize, outputs=True)
    for rank, (given, sizes) in enumerate(zip(inputs, layout_in, strict=True)):
        memory[rank, INPUT] = list(_cut(rank, given, sizes, stored))
        memory[rank, OUTPUT] = [None] * len(layout_out[rank])
        for name, chunks in program.scratch.items():
            memory[rank, name] = [None] * chunks
    for line in program.ops:
        sources = [_read(program, memory, ref, spell_op(line)) for ref in line.srcs]
        held = memory[line.dst.rank, line.dst.buffer]
        for i, parts in enumerate(zip(*sources, strict=True)):
            held[line.dst.start + i] = combine(operator, parts, dtype)
    divides = collectives.get(program.collective).reduces
    final = operator if divides else Operator.SUM
    outputs = []
    for rank, sizes in enumerate(layout_out):
        whole = Ref(rank, OUTPUT, 0, len(sizes))
        pieces = _read(program, memory, whole, "the result") if sizes else []
        flat = np.concatenate(pieces) if pieces else np.empty(0, stored)
        outputs.append(finish(final, flat, Shape.of(program).num_members, dtype))
    return outputs


def _cut(
    rank: int, given: Array, sizes: Sequence[int], stored: np.dtype[np.generic]
) -> Sequence[Array]:
    if given.ndim != 1 or given.dtype != stored or given.size != sum(sizes):
        raise CallError(
            f"rank {rank}: input of {given.size} {given.dtype} in {given.ndim} axes; "
            f"want {sum(sizes)} {stored} in one"
        )
    return np.split(given, np.cumsum(sizes)[:-1]) if sizes else ()


def _read(program: Program, memory: _Memory, ref: Ref, line: str) -> list[Array]:
    found: list[Array] = []
    for i, chunk in enumerate(memory[ref.rank, ref.buffer][ref.start : ref.stop]):
        if chunk is None:
            raise UndefinedError(
                f"{program.name}: {line}: r{ref.rank}.{ref.buffer}[{ref.start + i}] "
                f"is read and nobody wrote it"
            )
        found.append(chunk)
    return found
