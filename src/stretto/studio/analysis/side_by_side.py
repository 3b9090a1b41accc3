"""A program beside its plan and its kernel, tied line by line.

An operation knows its author's line, a move of the plan its operation, and a kernel
says above each statement which step of the plan it is. A signal belongs to the move
before it, a wait to the move after it.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from stretto.compiler.lower import lower
from stretto.compiler.plan import (
    Move,
    Plan,
    ProvedPlan,
    Schedule,
    Step,
    Wait,
    spell_step,
)
from stretto.compiler.verify import verify, verify_plan
from stretto.errors import StrettoError, is_library
from stretto.executors import cuda
from stretto.program.collectives import Operator
from stretto.program.ir import Program, spell_op

_MOST_LINES = 6000
_MOST_SOURCE_BYTES = 1 << 20
_FUNCTION = re.compile(r"void steps_R\d+L(\d+)\(")
_STEP = re.compile(r"  // (\d+): ")
_OF_ALL = ("together", "signal", "wait")
"""Calls that do all steps that were announced."""
_CALL = re.compile(r"\s+(\w+)<(\d+)(?:, \w+)*>\(")


@dataclass(frozen=True, slots=True, kw_only=True)
class TextLine:
    """A line of text, and the author's lines that it serves."""

    text: str
    number: int = 0
    """In its file; 0: it is in none."""
    ops: tuple[int, ...] = ()
    """Operations of the program that it writes, or serves."""
    steps: tuple[tuple[int, int], ...] = ()
    """Lane and step of the plan: what it is, or is part of."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SideBySide:
    """The three texts."""

    author: tuple[TextLine, ...]
    author_name: str
    plan: tuple[TextLine, ...]
    kernel: tuple[TextLine, ...]
    notes: tuple[str, ...]


def side_by_side(
    program: Program, *, schedule: str, rank: int, dtype: str, given: str = ""
) -> SideBySide:
    """Return a program's text, the plan of a rank, and its kernel.

    The author's file is read where it is the library's, or the one that was `given`.
    """
    notes: list[str] = []
    author, name = _author(program, given)
    plan: ProvedPlan | None = None
    lines: list[TextLine] = []
    kernel: list[TextLine] = []
    try:
        proved = verify(program)
        plan = verify_plan(lower(proved, Schedule.parse(schedule)), proved)
        lines = _plan_lines(plan.value, rank)
    except StrettoError as e:
        notes.append(f"There is no plan: {e}")
    if plan is not None:
        ops = {step: line.ops for line in lines for step in line.steps}
        try:
            show = cuda.show
            text = show(plan, dtype=dtype, op=Operator.SUM, rank=rank)
            kernel = _kernel_lines(text, ops)
        except (StrettoError, ModuleNotFoundError) as e:
            notes.append(f"There is no kernel: {e}")
    for what, found in (("program", author), ("plan", lines), ("kernel", kernel)):
        if len(found) > _MOST_LINES:
            notes.append(f"The first {_MOST_LINES:,} lines of the {what} are shown.")
    return SideBySide(
        author=tuple(author[:_MOST_LINES]),
        author_name=name,
        plan=tuple(lines[:_MOST_LINES]),
        kernel=tuple(kernel[:_MOST_LINES]),
        notes=tuple(notes),
    )


def _author(program: Program, given: str) -> tuple[list[TextLine], str]:
    """Return the author's function, or the program's own text where nobody wrote it."""
    by_line: dict[int, list[int]] = {}
    files = set()
    for at, op in enumerate(program.ops):
        file, colon, number = program.place(op).rpartition(":")
        if not (colon and number.isdigit()):
            return _own_text(program), "the program"
        files.add(file)
        by_line.setdefault(int(number), []).append(at)
    name = files.pop() if len(files) == 1 else ""
    is_allowed = name and (is_library(name) or _same(name, given))
    source = _read(name) if is_allowed else None
    if source is None:
        return _own_text(program), "the program"
    file, _, number = program.source.rpartition(":")
    begin = int(number) if file == name and number.isdigit() else min(by_line)
    end = _end_of(source, max(by_line))
    begin = max(1, min(begin, *by_line))
    lines = [
        TextLine(text=text, number=at, ops=tuple(by_line.get(at, ())))
        for at, text in enumerate(source, 1)
        if begin <= at <= end
    ]
    return lines, Path(name).name


def _end_of(source: list[str], last: int) -> int:
    """Return where the statement that begins in a line ends: the next blank line."""
    end = last
    while end < len(source) and source[end].strip():
        end += 1
    return end


def _same(name: str, given: str) -> bool:
    return bool(given) and Path(name).resolve() == Path(given).resolve()


def _read(name: str) -> list[str] | None:
    path = Path(name)
    try:
        if path.stat().st_size > _MOST_SOURCE_BYTES:
            return None
        return path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError):
        return None


def _own_text(program: Program) -> list[TextLine]:
    return [
        TextLine(text=spell_op(op), number=at + 1, ops=(at,))
        for at, op in enumerate(program.ops)
    ]


def _plan_lines(plan: Plan, rank: int) -> list[TextLine]:
    lines: list[TextLine] = []
    for lane, steps in enumerate(plan.ranks[rank]):
        lines.append(TextLine(text=f"lane {lane}"))
        served = _served(steps)
        lines += [
            TextLine(
                text=f"  {spell_step(rank, step)}", ops=served[at], steps=((lane, at),)
            )
            for at, step in enumerate(steps)
        ]
    return lines


def _served(steps: Sequence[Step]) -> list[tuple[int, ...]]:
    """Return the operation of every step of a lane, by the rule above.

    What has no move on its own side goes with the one on the other.
    """
    before: list[tuple[int, ...]] = []
    last: tuple[int, ...] = ()
    for step in steps:
        if isinstance(step, Move) and step.op >= 0:
            last = (step.op,)
        before.append(last)
    after: list[tuple[int, ...]] = []
    last = ()
    for step in reversed(steps):
        if isinstance(step, Move) and step.op >= 0:
            last = (step.op,)
        after.append(last)
    after.reverse()
    return [
        (next_ or first) if isinstance(step, Wait) else (first or next_)
        for step, first, next_ in zip(steps, before, after, strict=True)
    ]


def _kernel_lines(
    text: str, ops: dict[tuple[int, int], tuple[int, ...]]
) -> list[TextLine]:
    """Return the kernel's lines, each with the steps that it is part of.

    `// 3: put ...` announces step 3; several in a row, what is done side by side. What
    follows is all of theirs, but for a call such as `put<3>(`, which is step 3's.
    """
    lines: list[TextLine] = []
    lane = -1
    announced: list[int] = []
    now: list[int] = []
    for at, line in enumerate(text.splitlines(), 1):
        if found := _FUNCTION.search(line):
            lane, announced, now = int(found[1]), [], []
        elif line == "}":
            lane, now = -1, []
        elif lane >= 0 and (found := _STEP.match(line)):
            if not _STEP.match(lines[-1].text):
                announced = []
            announced.append(int(found[1]))
            now = announced[-1:]
        elif found := _CALL.match(line):
            if found[1] in _OF_ALL:
                now = announced
            elif int(found[2]) in announced:
                now = [int(found[2])]
        elif lines and _STEP.match(lines[-1].text):
            now = announced
        steps = tuple((lane, step) for step in now) if lane >= 0 else ()
        served = dict.fromkeys(op for step in steps for op in ops.get(step, ()))
        lines.append(TextLine(text=line, number=at, ops=tuple(served), steps=steps))
    return lines


def packed(lines: tuple[TextLine, ...]) -> dict[str, Any]:
    """Return lines as a page takes them."""
    return {
        "text": [line.text for line in lines],
        "number": [line.number for line in lines],
        "ops": [list(line.ops) for line in lines],
        "steps": [[list(step) for step in line.steps] for line in lines],
    }
