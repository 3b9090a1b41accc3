"""What an algorithm's function does, recorded with the author's lines.

A program has a stated limit of operations, so that an absurd number of ranks is an
error and not the end of this machine's memory.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from pathlib import Path
from types import CodeType, TracebackType
from typing import Any

from stretto.errors import LaunchEnvironmentError, ProgramError
from stretto.program.ir import Op, Ref, Via

LIMIT = "STRETTO_MOST_OPERATIONS"
"""The environment variable that raises the limit."""
_MOST = 16_000_000
_LANG = os.fspath(Path(__file__).parent)
Line = tuple[CodeType, int]
Ways = tuple[Via | None, ...]
"""The way of each source, when somebody says one."""


def most_operations() -> int:
    """Return how many operations a program may have; one of k sources counts as k."""
    text = os.environ.get(LIMIT, "")
    if text and not (text.isascii() and text.isdigit() and 0 < len(text) < 19):
        raise LaunchEnvironmentError(
            f"{LIMIT}={text[:60]!r}; want a whole number, such as {_MOST}"
        )
    return int(text) if text else _MOST


class Reduction:
    """A combination that has not been stored yet."""

    __slots__ = ("srcs", "updated_at", "ways")

    def __init__(
        self, srcs: tuple[Ref, ...], ways: Ways, updated_at: Line | None = None
    ) -> None:
        self.srcs, self.ways = srcs, ways
        self.updated_at = updated_at
        """Where `+=` made it; None: `reduce` or `+` did."""

    def __add__(self, other: object) -> Reduction:
        """Return the combination with one more reference, as `a + b + c` reads."""
        ref = getattr(other, "ref", None)
        if not isinstance(ref, Ref):
            raise ProgramError(
                f"{self} + {other!r}: want one reference; sums go from left to right, "
                f"without brackets: a + b + c, or reduce(a, b, c)"
            )
        way: Via | None = getattr(other, "way", None)
        return Reduction((*self.srcs, ref), (*self.ways, way))

    __radd__ = __add__

    def __iadd__(self, other: object) -> Any:
        """Refuse: a variable is no place that could be updated."""
        raise ProgramError(
            f"+= on a variable that holds {self}: this stores nothing anywhere; write "
            f"total = total + {other!r} to build a longer sum, reduce(a, b, c) for all "
            f"of it, or += on a buffer: r.output[0] += ..."
        )

    def __repr__(self) -> str:
        """Return it as programs print it."""
        return " + ".join(map(str, self.srcs))


class Trace:
    """The operations recorded so far. One per build; there is no global one."""

    def __init__(self, most: int) -> None:
        self.ops: list[Op] = []
        self.scratch: dict[str, int] = {}
        self.phase = ""
        self.places: list[str] = []
        self.size = 0
        """Operations so far; one of k sources counts as k."""
        self.pending: Reduction | None = None
        """What `+=` made and nothing has stored yet."""
        self._most = most
        self._place_ids: dict[Line, int] = {}

    def record(self, dst: Ref, srcs: tuple[Ref, ...], ways: Ways) -> None:
        """Record one assignment, made two frames up."""
        frame = sys._getframe(2)
        key = (frame.f_code, frame.f_lineno)
        place = self._place_ids.get(key)
        if place is None:
            place = self._place_ids[key] = len(self.places)
            self.places.append(_spell(key))
        if all(way is None for way in ways):
            ways = ()
        self.ops.append(Op(dst, srcs, self.phase, place, ways))
        self.size += len(srcs)
        if self.size > self._most:
            raise ProgramError(
                f"more than {self._most:,} operations; want fewer ranks, a smaller "
                f"split, or {LIMIT}=N in the environment for a larger limit"
            )

    def update(self, ref: Ref, by: Ref, ways: Ways) -> Reduction:
        """Return what `ref += by`, made two frames up, is about to store."""
        if self.pending is not None:
            self.settle()
        frame = sys._getframe(2)
        made = Reduction((ref, by), ways, (frame.f_code, frame.f_lineno))
        self.pending = made
        return made

    def store(self, dst: Ref, value: Reduction) -> None:
        """Take note that a combination is being stored."""
        if value is self.pending and value.srcs[0] == dst:
            self.pending = None
            return
        self.settle()
        if value.updated_at is not None:
            raise _unstored(value)

    def settle(self) -> None:
        """Raise when `+=` made something that nobody stored."""
        if self.pending is not None:
            raise _unstored(self.pending)


def _unstored(value: Reduction) -> ProgramError:
    ref, by = value.srcs
    assert value.updated_at is not None  # only += is ever unstored
    return ProgramError(
        f"+= on a variable that names {ref}: this stores nothing in {ref}; write "
        f"r.{ref.buffer}[{ref.chunks}] += {by} to update the buffer, or "
        f"total = total + {by} to build a longer sum"
    ).at(_spell(value.updated_at))


def _spell(line: Line) -> str:
    return f"{line[0].co_filename}:{line[1]}"


def blame(trace: TracebackType | None, function: Callable[..., object]) -> str:
    """Return the author's line that an exception came from.

    That is the innermost one in the file of the algorithm's function; in another file
    of the author's when there is none; else where the function is.
    """
    own = getattr(function, "__code__", None)
    last = ""
    here = ""
    while trace is not None:
        code = trace.tb_frame.f_code
        if own is not None and code.co_filename == own.co_filename:
            here = f"{code.co_filename}:{trace.tb_lineno}"
        elif not code.co_filename.startswith(_LANG):
            last = f"{code.co_filename}:{trace.tb_lineno}"
        trace = trace.tb_next
    if here:
        return here
    return f"{own.co_filename}:{own.co_firstlineno}" if own is not None else last
