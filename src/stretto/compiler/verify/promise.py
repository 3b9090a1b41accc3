"""Prove that a program is the collective it claims to be, by running it on symbols.

Read it as one thread would: every assignment moves contributions. At the end each
output chunk must hold exactly those that the collective promises.
"""

from __future__ import annotations

import itertools
from collections import defaultdict

from stretto.compiler.verify.contents import Contents, add, describe, moved
from stretto.compiler.verify.culprit import (
    at_line,
    explain_missing,
    explain_sizes,
    explain_value,
    unwritten,
)
from stretto.errors import BoundsError, PromiseError, UndefinedError
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
Sizes = list[tuple[int, int, int]]
"""Runs (offset, offset, symbol) of a reference's sizes."""


@undisturbed
def verify(program: Program) -> Verified[Program]:
    """Return the program as proved, or raise what is wrong with it and where."""
    return Verified(_Proof(program).run())


class _Proof:
    def __init__(self, program: Program) -> None:
        self.program = program
        self.kind = collectives.get(program.collective)
        self.shape = Shape.of(program)
        self.kind.check(self.shape)
        self.held: dict[tuple[int, str], Spans[Held]] = defaultdict(Spans)
        self.sizes: dict[tuple[int, str], Spans[int]] = defaultdict(Spans)
        self.chunks = dict.fromkeys(program.scratch, 0) | dict(program.scratch)
        self.ends: dict[tuple[int, str], int] = {}
        for rank in range(program.num_ranks):
            self._enter(rank, INPUT, self.kind.input_runs(self.shape, rank))
            self._enter(rank, OUTPUT, self.kind.output_runs(self.shape, rank))
            end = self.ends[rank, INPUT]
            if end:
                self.held[rank, INPUT].write(0, end, (((0, 1 << rank, 1),), -1))

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
        dst = op.dst
        for ref in (dst, *op.srcs):
            self._inside(op, ref)
        if dst.buffer == INPUT:
            raise self._outside(op, f"{dst}: input is never written")
        pieces = [self._read(op, src) for src in op.srcs]
        self._same_sizes(op)
        cuts = sorted({a for p in pieces for a, _, _ in p} | {dst.stop - dst.start})
        target = self.held[dst.rank, dst.buffer]
        if len(cuts) == 2:
            contents = pieces[0][0][2]
            for other in pieces[1:]:
                contents = add(contents, other[0][2])
            target.write(dst.start, dst.stop, (moved(contents, dst.start), index))
            return
        if len(pieces) == 1:
            for a, b, held in pieces[0]:
                contents = moved(held, dst.start)
                target.write(dst.start + a, dst.start + b, (contents, index))
            return
        for a, b in itertools.pairwise(cuts):
            contents = _at_offset(pieces[0], a)
            for other in pieces[1:]:
                contents = add(contents, _at_offset(other, a))
            contents = moved(contents, dst.start)
            target.write(dst.start + a, dst.start + b, (contents, index))

    def _read(self, op: Op, src: Ref) -> list[tuple[int, int, Contents]]:
        """Return what a reference holds, by offset, as seen from offset 0."""
        found = self.held[src.rank, src.buffer].read(src.start, src.stop)
        at = src.start
        for a, b, _ in found:
            if a > at:
                break
            at = b
        if at < src.stop:
            ref = Ref(src.rank, src.buffer, at, at + 1)
            raise UndefinedError(unwritten(self.program, op, ref))
        s = src.start
        return [(a - s, b - s, moved(c, -s)) for a, b, (c, _) in found]

    def _inside(self, op: Op, ref: Ref) -> None:
        if not 0 <= ref.rank < self.program.num_ranks:
            n = self.program.num_ranks
            raise self._outside(op, f"{ref}: there are {n} ranks")
        end = self.ends.get((ref.rank, ref.buffer), self.chunks.get(ref.buffer))
        if end is None:
            known = ", ".join([INPUT, OUTPUT, *self.chunks])
            raise self._outside(op, f"{ref}: no such buffer; known: {known}")
        if not 0 <= ref.start < ref.stop <= end:
            what = f"r{ref.rank}.{ref.buffer} has {end} chunks"
            raise self._outside(op, f"{ref}: {what}")

    def _outside(self, op: Op, what: str) -> BoundsError:
        return BoundsError(f"{at_line(self.program, op)}: {what}")

    def _same_sizes(self, op: Op) -> None:
        """Compare sizes; a scratch chunk has that of what was last stored in it."""
        dst, wants = op.dst, [self._sizes(src) for src in op.srcs]
        if dst.buffer not in (INPUT, OUTPUT) and dst not in op.srcs:
            sizes = self.sizes[dst.rank, dst.buffer]
            for a, b, symbol in wants[0]:
                at = dst.start + a
                sizes.write(at, dst.start + b, symbol - at)
        got = self._sizes(dst)
        for src, want in zip(op.srcs, wants, strict=True):
            if got != want:
                both = got, want
                raise PromiseError(
                    explain_sizes(self.program, self.kind, self.shape, op, src, both)
                )

    def _sizes(self, ref: Ref) -> Sizes:
        runs: Sizes = []
        for a, b, shift in self.sizes[ref.rank, ref.buffer].read(ref.start, ref.stop):
            x, y, symbol = a - ref.start, b - ref.start, a + shift
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


def _at_offset(pieces: list[tuple[int, int, Contents]], at: int) -> Contents:
    return next(c for a, b, c in pieces if a <= at < b)


def _end(stop: int) -> tuple[int, int, Held]:
    return stop, stop, ((), -1)
