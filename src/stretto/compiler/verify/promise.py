"""Prove that a program is the collective it claims to be, by running it on symbols.

Read it as one thread would: every assignment moves contributions. At the end each
output chunk must hold exactly those that the collective promises.
"""

from __future__ import annotations

from collections import defaultdict

from stretto.compiler.verify.contents import Contents, add, describe, moved
from stretto.compiler.verify.culprit import (
    at_line,
    explain_missing,
    explain_sizes,
    explain_value,
    unwritten,
)
from stretto.errors import BoundsError, PromiseError, UndefinedError, refuse_other
from stretto.program import collectives
from stretto.program.collectives import Shape, SymbolRun
from stretto.program.ir import (
    INPUT,
    OUTPUT,
    Op,
    Program,
    Ref,
    Spans,
    Verified,
    undisturbed,
)

Held = tuple[Contents, int]
"""What a chunk holds, and which operation stored it (-1: the caller)."""
Pieces = list[tuple[int, int, Contents]]
"""What neighbouring chunks hold, from and to."""
Sizes = list[tuple[int, int, int]]
"""Runs (offset, offset, symbol) of a reference's sizes."""


@undisturbed
def verify(program: Program) -> Verified[Program]:
    """Return the program as proved, or raise what is wrong with it and where."""
    refuse_other("verify", program, Program, "a program, such as algorithm.build(4)")
    return Verified(_Proof(program).run())


class _Proof:
    def __init__(self, program: Program) -> None:
        self.program = program
        self.kind = collectives.get(program.collective)
        self.shape = Shape.of(program)
        self.kind.check(self.shape)
        self.held: dict[tuple[int, str], Spans[Held]] = defaultdict(Spans)
        self.sizes: dict[tuple[int, str], Spans[int]] = defaultdict(Spans)
        self.ends: dict[tuple[int, str], int] = {}
        """Chunks of each buffer."""
        for rank in range(program.num_ranks):
            self._enter(rank, INPUT, self.kind.input_runs(self.shape, rank))
            self._enter(rank, OUTPUT, self.kind.output_runs(self.shape, rank))
            end = self.ends[rank, INPUT]
            if end:
                self.held[rank, INPUT].write(0, end, (((0, 1 << rank, 1),), -1))
            for buffer, chunks in program.scratch.items():
                self.ends.setdefault((rank, buffer), chunks)

    def _enter(self, rank: int, buffer: str, runs: tuple[SymbolRun, ...]) -> None:
        for start, stop, symbol in runs:
            self.sizes[rank, buffer].write(start, stop, symbol - start)
        self.ends[rank, buffer] = runs[-1].stop if runs else 0

    def run(self) -> Program:
        for index, op in enumerate(self.program.ops):
            self._assign(index, op)
        for rank in range(self.program.num_ranks):
            self._check(rank)
        return self.program

    # One assignment: bounds, sizes, then what it holds.

    def _assign(self, index: int, op: Op) -> None:
        dst, srcs = op.dst, op.srcs
        for ref in (dst, *srcs):
            if not 0 <= ref.start < ref.stop <= self.ends.get(ref[:2], 0):
                raise self._outside(op, self._why_outside(ref))
        if dst.buffer == INPUT:
            raise self._outside(op, f"{dst}: input is never written")
        pieces = [self._read(op, src) for src in srcs]
        self._same_sizes(op)
        target = self.held[dst[:2]]
        if max(map(len, pieces)) == 1:
            contents = pieces[0][0][2]
            for other in pieces[1:]:
                contents = add(contents, other[0][2])
            target.write(dst.start, dst.stop, (contents, index))
            return
        whole = pieces[0]
        for more in pieces[1:]:
            whole = _together(whole, more)
        target.write_all([(a, b, (contents, index)) for a, b, contents in whole])

    def _read(self, op: Op, src: Ref) -> Pieces:
        """Return what a source holds, laid where it is to be stored."""
        _, _, start, stop = src
        found = self.held[src[:2]].read(start, stop)
        at = start
        for a, b, _ in found:
            if a > at:
                break
            at = b
        if at < stop:
            ref = Ref(src.rank, src.buffer, at, at + 1)
            raise UndefinedError(unwritten(self.program, op, ref))
        by = op.dst.start - start
        if not by:
            return [(a, b, contents) for a, b, (contents, _) in found]
        return [(a + by, b + by, moved(c, by)) for a, b, (c, _) in found]

    def _why_outside(self, ref: Ref) -> str:
        if not 0 <= ref.rank < self.program.num_ranks:
            return f"{ref}: there are {self.program.num_ranks} ranks"
        end = self.ends.get(ref[:2])
        if end is None:
            known = ", ".join([INPUT, OUTPUT, *self.program.scratch])
            return f"{ref}: no such buffer; known: {known}"
        return f"{ref}: r{ref.rank}.{ref.buffer} has {end} chunks"

    def _outside(self, op: Op, what: str) -> BoundsError:
        return BoundsError(f"{at_line(self.program, op)}: {what}")

    def _same_sizes(self, op: Op) -> None:
        """Compare sizes; a scratch chunk has that of what was last stored in it."""
        dst, wants = op.dst, [self._sizes(src) for src in op.srcs]
        if dst.buffer not in (INPUT, OUTPUT) and dst not in op.srcs:
            first = dst.start
            self.sizes[dst[:2]].write_all(
                [
                    (first + a, first + b, symbol - first - a)
                    for a, b, symbol in wants[0]
                ]
            )
        got = self._sizes(dst)
        for src, want in zip(op.srcs, wants, strict=True):
            if got != want:
                both = got, want
                raise PromiseError(
                    explain_sizes(self.program, self.kind, self.shape, op, src, both)
                )

    def _sizes(self, ref: Ref) -> Sizes:
        start = ref.start
        found = self.sizes[ref[:2]].read(start, ref.stop)
        if len(found) == 1:
            a, b, shift = found[0]
            return [(a - start, b - start, a + shift)]
        runs: Sizes = []
        for a, b, shift in found:
            x, y, symbol = a - start, b - start, a + shift
            if runs and runs[-1][1] == x and symbol - x == runs[-1][2] - runs[-1][0]:
                runs[-1] = (runs[-1][0], y, runs[-1][2])
            else:
                runs.append((x, y, symbol))
        return runs

    # The promise.

    def _check(self, rank: int) -> None:
        held = self.held[rank, OUTPUT]
        for start, stop, chunk, ranks in self.kind.promise(self.shape, rank):
            shift = chunk - start
            at = start
            for a, b, (contents, writer) in [*held.read(start, stop), _end(stop)]:
                if a > at:
                    need = at + shift, ranks
                    raise PromiseError(explain_missing(self.program, rank, at, a, need))
                at = b
                if b > a and contents != ((shift, ranks, 1),):
                    line, blamed = explain_value(
                        self.program, writer, a, ((shift, ranks, 1),)
                    )
                    raise PromiseError(
                        f"{line}: {self.program.name}: rank {rank}, output[{a}] "
                        f"{describe(contents, a, shift, ranks)}. {blamed}"
                    )


def _together(some: Pieces, more: Pieces) -> Pieces:
    """Return both sources' contents added, piece by piece: cut where either is."""
    found: Pieces = []
    one = two = 0
    at = some[0][0]
    while one < len(some):
        stop = min(some[one][1], more[two][1])
        found.append((at, stop, add(some[one][2], more[two][2])))
        at = stop
        one += some[one][1] == stop
        two += more[two][1] == stop
    return found


def _end(stop: int) -> tuple[int, int, Held]:
    return stop, stop, ((), -1)
