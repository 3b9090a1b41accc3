"""A program followed by its values: who contributed to which chunk, step by step."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from stretto.program.ir import INPUT, OUTPUT, Program, spell_op, steps_of

_MOST_CELLS = 4_000_000
"""Steps by ranks by chunks: what a page is told."""
_MOST_OPS = 60_000


class Contributions(NamedTuple):
    """The moves of a program, and what ranks hold after each step."""

    num_steps: int
    step: NDArray[np.int32]
    """Of each move, as are the next ones."""
    src: NDArray[np.int32]
    dst: NDArray[np.int32]
    op: NDArray[np.int32]
    adds: NDArray[np.uint8]
    texts: list[str]
    """Of each operation."""
    places: list[int]
    """Of each operation: the index of the author's line, or -1."""
    chunks: int
    """Of an output; those of the rank that has the most."""
    held: NDArray[np.uint16] | None
    """Contributions by step (from 0: before the first), rank and output chunk."""


def contributions_of(program: Program) -> Contributions | None:
    """Return what a program does, step by step; None: it is too long for a picture."""
    if len(program.ops) > _MOST_OPS:
        return None
    numbers = steps_of(program)
    num_steps = max(numbers, default=-1) + 1
    moves = [
        (step, src, op.dst.rank, at, len(op.srcs) > 1)
        for at, (op, step) in enumerate(zip(program.ops, numbers, strict=True))
        for src in sorted({ref.rank for ref in op.srcs})
        if src != op.dst.rank
    ]
    columns = [np.array(c, np.int32) for c in zip(*moves, strict=True)] or [
        np.zeros(0, np.int32)
    ] * 5
    chunks = max(
        (op.dst.stop for op in program.ops if op.dst.buffer == OUTPUT), default=0
    )
    cells = (num_steps + 1) * program.num_ranks * chunks
    return Contributions(
        num_steps=num_steps,
        step=columns[0],
        src=columns[1],
        dst=columns[2],
        op=columns[3],
        adds=columns[4].astype(np.uint8),
        texts=[spell_op(op) for op in program.ops],
        places=[op.where for op in program.ops],
        chunks=chunks,
        held=_held(program, numbers, num_steps, chunks)
        if 0 < cells <= _MOST_CELLS
        else None,
    )


def _held(
    program: Program, numbers: list[int], num_steps: int, chunks: int
) -> NDArray[np.uint16]:
    """Return how many ranks have contributed to every output chunk after each step."""
    values: dict[tuple[int, str, int], int] = {}
    now = np.zeros((program.num_ranks, chunks), np.uint16)
    held = np.zeros((num_steps + 1, *now.shape), np.uint16)
    by_step: list[list[int]] = [[] for _ in range(num_steps)]
    for at, step in enumerate(numbers):
        by_step[step].append(at)
    for step, ops in enumerate(by_step):
        for at in ops:
            op = program.ops[at]
            for i in range(op.dst.stop - op.dst.start):
                who = 0
                for src in op.srcs:
                    start = 1 << src.rank if src.buffer == INPUT else 0
                    who |= values.get((src.rank, src.buffer, src.start + i), start)
                chunk = op.dst.start + i
                values[op.dst.rank, op.dst.buffer, chunk] = who
                if op.dst.buffer == OUTPUT:
                    now[op.dst.rank, chunk] = who.bit_count()
        held[step + 1] = now
    return held
