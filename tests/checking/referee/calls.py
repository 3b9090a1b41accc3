"""A call of a plan, laid out in elements: sizes, tiles, offsets, and what is wanted.

Chunks are cut as everywhere (`ir.partition`), with elements as large as the alignment,
so that chunks of one or two elements exist.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate, pairwise
from typing import NamedTuple

import numpy as np
from tests.checking.cases import shape_of
from tests.checking.referee.values import Values
from tests.checking.referee.verdict import Fault, Outcome
from tests.checking.referee.wanted import Buffers, buffers, from_program

from stretto.compiler.plan import BufferRun, Groups, Plan
from stretto.program import collectives
from stretto.program.ir import Program

__all__ = ["Call", "LaidOut", "Want", "check_program", "lay_out", "wanted"]

_UNIT = 16
"""Bytes of an element here: the alignment of chunks, so that any size can be."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    """One call of a plan by all ranks."""

    plan: Plan
    counts: tuple[int, ...]
    most: int = 1 << 30
    """Elements of an atom that a block moves in one tile, at most."""
    in_place: frozenset[int] = frozenset()
    """The ranks whose output is in their input."""
    program: Program | None = None
    """What the plan was made of, when the order of sums is to be judged by it."""
    groups: Groups | None = None
    """By rank and lane, how many steps run at once, one group after the other."""
    copies: tuple[int, ...] | None = None
    """By rank, the first group whose moves copy engines run, in any order."""

    def together(self, rank: int, lane: int) -> list[range]:
        """Return the steps of a lane, those together that run at once."""
        steps = self.plan.ranks[rank][lane]
        if self.groups is None:
            return [range(i, i + 1) for i in range(len(steps))]
        ends = [0, *accumulate(self.groups[rank][lane])]
        assert ends[-1] == len(steps)  # they are the plan's
        return [range(a, b) for a, b in pairwise(ends)]

    def asked(self) -> tuple[object, ...]:
        """Return what says which results are wanted, be it of any plan."""
        plan = self.plan
        alike = (plan.collective, plan.num_ranks, plan.split, _key(plan.params))
        return *alike, self.counts, id(self.program)

    def layout(self) -> tuple[object, ...]:
        """Return all that says where elements are and what is wanted: not the steps.

        Calls of one program object with equal layouts differ in what lanes do, only.
        """
        plan = self.plan
        return (
            self.asked(),
            (plan.atoms, plan.inputs, plan.outputs, plan.stage_units),
            (plan.schedule.blocks, self.most, self.in_place, plan.hosts),
        )

    def __str__(self) -> str:
        """Return what tells calls of a plan apart."""
        most = f" tiles of {self.most}" if self.most < 1 << 30 else ""
        blocks = self.plan.schedule.blocks
        several = f" by {blocks} blocks" if blocks > 1 else ""
        place = f" in place on {sorted(self.in_place)}" if self.in_place else ""
        return f"counts {','.join(map(str, self.counts))}{most}{several}{place}"


class Want(NamedTuple):
    """What a caller wants to find in a cell."""

    value: int | None
    """Exactly this, or (None) any sum of the leaves that is the same on all ranks."""
    leaves: tuple[int, ...]
    divided: bool
    what: str
    """The cell in words."""


class LaidOut(NamedTuple):
    """A call, and where its atoms lie."""

    call: Call
    sizes: list[int]
    """Elements of every atom."""
    tile: int
    tiles: int
    inputs: list[list[int]]
    """For each rank, where every position of its input begins, and its end."""
    outputs: list[list[int]]
    buffers: tuple[Buffers, ...]
    epoch: int
    """The first epoch of the call."""
    summed: bool
    """Whether final values are divided when the operator is avg."""


def lay_out(call: Call, epoch: int) -> LaidOut:
    """Return a call laid out; `Fault` when the plan's atoms are none."""
    plan = call.plan
    symbols = _symbols(plan, call.counts)
    sizes = []
    for a, b in plan.atoms:
        if not 0 <= a <= b <= len(symbols):
            text = f"an atom has symbols {a}:{b}, of {len(symbols)}"
            raise Fault(Outcome.OUTSIDE, text)
        sizes.append(sum(symbols[a:b]))
    blocks = plan.schedule.blocks
    largest = max(sizes, default=0)
    tiles = max(1, -(-largest // (blocks * call.most)))
    have = _buffers(plan, call.counts)
    return LaidOut(
        call=call,
        sizes=sizes,
        tile=max(1, -(-largest // (blocks * tiles))),
        tiles=tiles,
        inputs=[_offsets(runs, sizes) for runs in plan.inputs],
        outputs=[_offsets(runs, sizes) for runs in plan.outputs],
        buffers=have,
        epoch=epoch,
        summed=any(b.summed for b in have),
    )


def wanted(laid: LaidOut, values: Values, number: int) -> list[list[Want]]:
    """Return what the callers want to find in their outputs."""
    call, exact = laid.call, None
    if call.program is not None:
        exact = _by_program(call.program, call.counts, values, number, laid.buffers)
    found = []
    for rank, one in enumerate(laid.buffers):
        wants = []
        for i, parts in enumerate(one.wanted):
            leaves = tuple(sorted(values.given(number, q, j) for q, j in parts))
            value = exact[rank][i] if exact else None
            wants.append(Want(value, leaves, one.summed, f"r{rank}.out[{i}]"))
        found.append(wants)
    return found


def check_program(program: Program, counts: tuple[int, ...]) -> None:
    """Raise `Fault` unless the program computes its collective for these counts."""
    values = Values()
    try:
        have = _buffers(program, counts)
        made = _by_program(program, counts, values, 0, have)
    except (KeyError, ValueError) as e:
        raise Fault(Outcome.UNDEFINED, f"{type(e).__name__} {e}") from None
    for rank, one in enumerate(have):
        for i, parts in enumerate(one.wanted):
            leaves = tuple(sorted(values.given(0, q, j) for q, j in parts))
            got = made[rank][i]
            if got is None:
                raise Fault(Outcome.UNDEFINED, f"r{rank}.out[{i}] is not written")
            whole = values.undivided(got) if one.summed else got
            if whole is None or values.leaves(whole) != leaves:
                text = f"r{rank}.out[{i}] is {values.spell(got)}"
                raise Fault(Outcome.WRONG, text)


@dataclass(frozen=True, slots=True)
class _Asked:
    """A collective and counts: what a plan or program has in common with others."""

    key: tuple[object, ...]
    what: Plan | Program = field(compare=False)
    counts: tuple[int, ...] = field(compare=False)


def _asked(what: Plan | Program, counts: tuple[int, ...]) -> _Asked:
    alike = (what.collective, what.num_ranks, what.split, _key(what.params), counts)
    return _Asked(alike, what, counts)


def _key(params: Mapping[str, object]) -> tuple[object, ...]:
    return tuple(params.items())


def _symbols(what: Plan | Program, counts: tuple[int, ...]) -> list[int]:
    """Return the elements of every symbol."""
    return _symbols_of(_asked(what, counts))


@functools.lru_cache(4_096)
def _symbols_of(asked: _Asked) -> list[int]:
    what = asked.what
    kind, shape = collectives.get(what.collective), shape_of(what)
    sizes: list[int] = kind.symbol_sizes(
        shape, np.asarray(asked.counts), _UNIT
    ).tolist()
    return sizes


def _buffers(what: Plan | Program, counts: tuple[int, ...]) -> tuple[Buffers, ...]:
    """Return every rank's buffers."""
    return _buffers_of(_asked(what, counts))


@functools.lru_cache(4_096)
def _buffers_of(asked: _Asked) -> tuple[Buffers, ...]:
    what = asked.what
    return buffers(what.collective, what.num_ranks, what.params, asked.counts)


def _by_program(
    program: Program,
    counts: tuple[int, ...],
    values: Values,
    number: int,
    have: tuple[Buffers, ...],
) -> list[list[int | None]]:
    kind, shape = collectives.get(program.collective), shape_of(program)
    symbols = _symbols(program, counts)

    def chunks(runs: Sequence[collectives.SymbolRun]) -> list[int]:
        return [symbols[r.first + i] for r in runs for i in range(r.stop - r.start)]

    ranks = range(program.num_ranks)
    return from_program(
        program,
        [chunks(kind.input_runs(shape, r)) for r in ranks],
        [chunks(kind.output_runs(shape, r)) for r in ranks],
        values,
        number,
        divides=any(b.summed for b in have),
    )


def _offsets(runs: Sequence[BufferRun], sizes: Sequence[int]) -> list[int]:
    """Return where each position of a buffer begins, and where the last one ends."""
    held: list[int] = []
    for run in runs:
        for nth in range(run.stop - run.start):
            if not 0 <= run.atom + nth < len(sizes):
                raise Fault(Outcome.OUTSIDE, f"a buffer holds atom {run.atom + nth}")
            held.append(sizes[run.atom + nth])
    return [0, *accumulate(held)]
