"""Pass 1, follow values: which value every chunk holds, and where it must go.

Assignments become a graph. An *input* is what a caller passed; a *sum* combines values
on one rank; a *receipt* is a value that arrived from another rank; a *join* lays many
values side by side, so that they travel as one. Local copies vanish: they only give a
value another name. Values that no output needs are dropped.

Legend: v value, [lo, hi) its symbols, r rank. Every value covers consecutive symbols.
"""

from __future__ import annotations

import enum
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from typing import NamedTuple

from stretto.compiler.lower.far import far_schedule, refuse_far
from stretto.compiler.plan import Schedule
from stretto.program.collectives import Collective, Shape
from stretto.program.ir import INPUT, OUTPUT, Op, Program, Ref, Spans


class ValueKind(enum.Enum):
    """How a value comes to be on its rank."""

    INPUT = "input"
    SUM = "sum"
    RECEIPT = "receipt"
    JOIN = "join"


class Value(NamedTuple):
    """A value of symbols [lo, hi) on a rank, made from `operands`, in their order."""

    kind: ValueKind
    rank: int
    lo: int
    hi: int
    operands: tuple[int, ...] = ()
    op: int = -1
    how: Schedule = Schedule()
    level: int = 0
    """Transfers on the longest way here."""
    cuts: tuple[int, ...] = ()
    """Of a join, the symbol where each operand's part starts."""


class Final(NamedTuple):
    """Output of a rank from symbol lo to hi is that part of a value."""

    rank: int
    value: int
    lo: int
    hi: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ValueGraph:
    """The graph of values of a program."""

    values: dict[int, Value]
    """Live values by number; operands have smaller numbers."""
    finals: tuple[Final, ...]


def laid_over(kind: Collective, shape: Shape, rank: int) -> Iterator[tuple[int, int]]:
    """Yield the symbols (of input, of output) that are one memory in place."""
    runs = kind.input_runs(shape, rank), kind.output_runs(shape, rank)
    if not runs[0] or not runs[1]:
        return
    inputs, outputs = (
        [first + i for a, b, first in r for i in range(b - a)] for r in runs
    )
    at = kind.in_place(shape, rank)
    if at is None:  # the output is the rank's own part of the input
        at = -inputs.index(outputs[0])
    yield from zip(inputs[max(0, -at) :], outputs[max(0, at) :], strict=False)


def follow_values(
    program: Program,
    kind: Collective,
    shape: Shape,
    schedule: Schedule,
    hosts: tuple[int, ...] = (),
) -> ValueGraph:
    """Return the values of a verified program and the outputs they end in."""
    return _Follower(program, kind, shape, schedule, hosts).run()


_MANY_PIECES = 16
"""Pieces from which a copy waits for all of them and travels as one."""

_Piece = tuple[int, int, int, int]
"""Offsets from and to in a reference, the value there, and its symbol at `from`."""


class _Follower:
    def __init__(
        self,
        program: Program,
        kind: Collective,
        shape: Shape,
        schedule: Schedule,
        hosts: tuple[int, ...],
    ) -> None:
        self.program, self.schedule, self.hosts = program, schedule, hosts
        self.values: list[Value] = []
        self.held: dict[tuple[int, str], Spans[tuple[int, int]]] = defaultdict(Spans)
        self.receipts: dict[tuple[int, int, int, int], int] = {}
        hows = schedule, *(schedule.of(phase) for phase in schedule.phases)
        self.finishes_apart = kind.reduces and any(h.memory != "staged" for h in hows)
        """Whether sums may be finished where they come, and a rank's own are not: such
        pieces do not travel as one."""
        self.joins: dict[object, int] = {}
        """By all that makes them: what is sent to several peers is laid out once."""
        self.many: dict[tuple[int, str], tuple[Ref, list[_Piece]]] = {}
        """By buffer: what was read of it last in many pieces, since it was stored to.
        """
        for rank in range(program.num_ranks):
            for start, stop, first in kind.input_runs(shape, rank):
                value = self._new(
                    Value(ValueKind.INPUT, rank, first, first + stop - start)
                )
                self.held[rank, INPUT].write(start, stop, (value, first - start))

    def _new(self, value: Value) -> int:
        self.values.append(value)
        return len(self.values) - 1

    def run(self) -> ValueGraph:
        hows: dict[str, Schedule] = {}
        for index, op in enumerate(self.program.ops):
            phase = op.phase or ("combine" if len(op.srcs) > 1 else "copy")
            if phase not in hows:
                hows[phase] = self.schedule.of(phase)
            self._assign(index, op, hows[phase])
        finals = [
            Final(rank, value, start + shift, stop + shift)
            for rank in range(self.program.num_ranks)
            for start, stop, (value, shift) in self.held[rank, OUTPUT]
        ]
        return ValueGraph(values=self._live(finals), finals=tuple(finals))

    def _assign(self, index: int, op: Op, how: Schedule) -> None:
        dst = op.dst
        if self.hosts:
            refuse_far(self.program, op, how, self.hosts)
        pieces = [self._read(src) for src in op.srcs]
        if len(pieces) == 1 and op.srcs[0].rank != dst.rank:
            pieces = [self._join(pieces[0], op.srcs[0].rank, index, how)]
        target = self.held[dst[:2]]
        self.many.pop(dst[:2], None)
        if max(map(len, pieces)) == 1:  # as mostly
            values = [piece[0][2] for piece in pieces]
            lo, width = pieces[0][0][3], dst.stop - dst.start
            made = self._made(values, dst.rank, lo, lo + width, index, how)
            target.write(dst.start, dst.stop, (made, lo - dst.start))
            return
        cuts = sorted({a for p in pieces for a, *_ in p} | {dst.stop - dst.start})
        new: list[tuple[int, int, tuple[int, int]]] = []
        for a, b in pairwise(cuts):
            found = [_at(p, a) for p in pieces]
            lo, start = found[0][1], dst.start + a
            values = [v for v, _ in found]
            made = self._made(values, dst.rank, lo, lo + b - a, index, how)
            new.append((start, dst.start + b, (made, lo - start)))
        target.write_all(new)

    def _made(
        self, values: list[int], rank: int, lo: int, hi: int, op: int, how: Schedule
    ) -> int:
        """Return the value that an operation makes of others on a rank."""
        if len(values) == 1 or how.direction == "push":
            values = [self._here(v, rank, lo, hi, op, how) for v in values]
        if len(values) == 1:
            return values[0]
        return self._sum(values, rank, lo, hi, op, how)

    def _sum(
        self, values: list[int], rank: int, lo: int, hi: int, op: int, how: Schedule
    ) -> int:
        level = max(self._level_at(v, rank) for v in values)
        made = Value(ValueKind.SUM, rank, lo, hi, tuple(values), op, how, level)
        return self._new(made)

    def _join(
        self, pieces: list[_Piece], rank: int, op: int, how: Schedule
    ) -> list[_Piece]:
        """Lay many pieces side by side when they are to travel together."""
        (start, _, _, lo), stop = pieces[0], pieces[-1][1]
        if len(pieces) < _MANY_PIECES or any(p[3] - p[0] != lo - start for p in pieces):
            return pieces
        if self.finishes_apart:
            return pieces
        parts = tuple(value for _, _, value, _ in pieces)
        cuts = tuple(symbol for _, _, _, symbol in pieces)
        level = max(self.values[v].level for v in parts)
        hi = lo + stop - start
        key = rank, lo, hi, parts, cuts
        if key not in self.joins:
            made = Value(ValueKind.JOIN, rank, lo, hi, parts, op, how, level, cuts)
            self.joins[key] = self._new(made)
        return [(start, stop, self.joins[key], lo)]

    def _level_at(self, value: int, rank: int) -> int:
        made = self.values[value]
        return made.level + (made.rank != rank)

    def _here(
        self, value: int, rank: int, lo: int, hi: int, op: int, how: Schedule
    ) -> int:
        """Return the value on this rank: itself, or its receipt."""
        source = self.values[value]
        if source.rank == rank:
            return value
        key = (value, rank, lo, hi)
        if key not in self.receipts:
            level = source.level + 1
            if self.hosts and self.hosts[source.rank] != self.hosts[rank]:
                how = far_schedule(how)
            made = Value(ValueKind.RECEIPT, rank, lo, hi, (value,), op, how, level)
            self.receipts[key] = self._new(made)
        return self.receipts[key]

    def _read(self, src: Ref) -> list[_Piece]:
        """Return the pieces of a reference; neighbours of one value are one piece."""
        buffer, start = src[:2], src.start
        if buffer in self.many and self.many[buffer][0] == src:
            return self.many[buffer][1]
        held = self.held[buffer].read(start, src.stop)
        if len(held) == 1:
            ((a, b, (value, shift)),) = held
            return [(a - start, b - start, value, a + shift)]
        found: list[_Piece] = []
        for a, b, (value, shift) in held:
            x, y, lo = a - start, b - start, a + shift
            if (
                found
                and found[-1][2] == value
                and found[-1][3] - found[-1][0] == lo - x
            ):
                found[-1] = (found[-1][0], y, value, found[-1][3])
            else:
                found.append((x, y, value, lo))
        if len(found) >= _MANY_PIECES:  # often sent to several ranks, one by one
            self.many[buffer] = src, found
        return found

    def _live(self, finals: list[Final]) -> dict[int, Value]:
        alive = {f.value for f in finals}
        for number in range(len(self.values) - 1, -1, -1):
            if number in alive:
                alive.update(self.values[number].operands)
        return {n: self.values[n] for n in sorted(alive)}


def _at(pieces: list[_Piece], at: int) -> tuple[int, int]:
    for a, b, value, lo in pieces:
        if a <= at < b:
            return value, lo + at - a
    raise AssertionError("verify found every chunk written")
