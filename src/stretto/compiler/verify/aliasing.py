"""Which places are one when a call is in place: exactly the same elements, or refused.

A collective says where in the output the input begins (or the output in the input), in
chunks. From there on both buffers go on chunk by chunk, and a chunk of one lies exactly
over a chunk of the other when all chunks before have the same sizes in both. Sizes are
symbols. Two symbols are one size

- for any counts, when they are the same symbol; so it is in most collectives;
- for counts of which each part has its partner's size, when they are the same chunk of
  their parts: so it is in all_to_all and permute. `Overlay.paired` says that a plan was
  proved for such counts only, and whoever runs it in place asks.

A plan moves *atoms*, slice by slice. Two atoms that overlap must be the same elements:
else slice t of one would touch slice u of the other, and no order of one tile speaks
for several.
"""

from __future__ import annotations

from dataclasses import dataclass

from stretto.errors import PlanError
from stretto.program.collectives import Collective, Shape, SymbolRun

Atoms = list[tuple[int, int]]
"""The chunks that each position of a buffer spans: from, to."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Overlay:
    """A rank's output over its input."""

    under: dict[int, int]
    """The input's position under each of the output's that has one."""
    paired: bool
    """Whether that holds only where partners have one size."""


def overlay(
    kind: Collective, shape: Shape, rank: int, inputs: Atoms, outputs: Atoms, name: str
) -> Overlay:
    """Return which positions are one, or raise why that cannot be said."""
    runs_in, runs_out = kind.input_runs(shape, rank), kind.output_runs(shape, rank)
    if not runs_in or not runs_out:
        return Overlay(under={}, paired=False)
    begin, paired = 0, False
    if runs_in != runs_out:
        mine, theirs = _symbols(runs_in), _symbols(runs_out)
        begin = _begin(kind, shape, rank, mine, theirs)
        paired = _match(kind, shape, rank, mine, theirs, begin, name)
    under = _atoms(rank, inputs, [(a - begin, b - begin) for a, b in outputs], name)
    return Overlay(under=under, paired=paired)


def _begin(
    kind: Collective, shape: Shape, rank: int, mine: list[int], theirs: list[int]
) -> int:
    """Return the output's chunk over which the input begins; below 0: inside it."""
    begin = kind.in_place(shape, rank)
    return mine[0] - theirs[0] if begin is None else begin


def _match(
    kind: Collective,
    shape: Shape,
    rank: int,
    mine: list[int],
    theirs: list[int],
    begin: int,
    name: str,
) -> bool:
    """Compare sizes chunk by chunk; return whether only partners' are alike."""
    parts = kind.chunks_per_part(shape)
    paired = False
    for at in range(max(0, -begin), min(len(mine), len(theirs) - begin)):
        a, b = mine[at], theirs[at + begin]
        if a == b:
            continue
        if a % parts != b % parts:
            raise PlanError(
                f"{name}: in place, rank {rank}: input[{at}] and output[{at + begin}] "
                f"begin together, and nothing says that they have one size; want a "
                f"call that is not in place"
            )
        paired = True
    return paired


def _atoms(rank: int, inputs: Atoms, outputs: Atoms, name: str) -> dict[int, int]:
    """Return the positions that are one, when no two overlap in part."""
    under: dict[int, int] = {}
    at = 0
    for pos, (start, stop) in enumerate(outputs):
        while at < len(inputs) and inputs[at][1] <= start:
            at += 1
        if at == len(inputs) or inputs[at][0] >= stop:
            continue
        if inputs[at] != (start, stop):
            a, b = inputs[at]
            raise PlanError(
                f"{name}: in place, rank {rank}: input[{a}:{b}] is moved as one, and "
                f"the output over its chunks {start} to {stop} is cut otherwise: a "
                f"slice of one would be part of another slice. Move the same chunks "
                f"together on both sides, or call it with an output of its own"
            )
        under[pos] = at
    return under


def _symbols(runs: tuple[SymbolRun, ...]) -> list[int]:
    return [first + i for start, stop, first in runs for i in range(stop - start)]
