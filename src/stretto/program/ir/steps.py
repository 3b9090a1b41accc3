"""Which operations of a program may happen at once: the step of every one.

An operation's step is one more than that of the last operation that it depends on.
"""

from __future__ import annotations

from collections import defaultdict

from stretto.program.ir.program import Program, Ref
from stretto.program.ir.spans import Spans


def steps_of(program: Program) -> list[int]:
    """Return the step of every operation, from 0."""
    wrote: dict[tuple[int, str], Spans[int]] = defaultdict(Spans)
    used: dict[tuple[int, str], Spans[int]] = defaultdict(Spans)
    found = []
    for op in program.ops:
        after = [_latest(wrote, ref) for ref in (*op.srcs, op.dst)]
        step = 1 + max(*after, _latest(used, op.dst))
        found.append(step)
        _note(wrote, op.dst, step)
        for src in op.srcs:
            _note(used, src, max(step, _latest(used, src)))
    return found


def _latest(marks: dict[tuple[int, str], Spans[int]], ref: Ref) -> int:
    held = marks[ref.rank, ref.buffer].read(ref.start, ref.stop)
    return max((step for _, _, step in held), default=-1)


def _note(marks: dict[tuple[int, str], Spans[int]], ref: Ref, step: int) -> None:
    marks[ref.rank, ref.buffer].write(ref.start, ref.stop, step)
