"""A plan's arrays: callers' buffers, staging by epoch parity, and what is announced.

Legend: r rank, b block, t tile-iteration (epoch), u unit of staging, p position.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from stretto.compiler.plan import Loc, Plan, Space, layout
from stretto.errors import CallError
from stretto.program.elements import Array, storage

__all__ = ["Place", "SimulatedMemory"]

Place = tuple[int, Space, int, int, int]
"""A rank, a space, a position or unit there, a block, and an epoch's parity."""


class SimulatedMemory:
    """What all ranks hold while a plan runs on arrays."""

    def __init__(
        self, plan: Plan, inputs: Sequence[Array], *, dtype: str,
        counts: Sequence[int], in_place: bool, tile_bytes: int | None,
        rng: np.random.Generator,
    ) -> None:  # fmt: skip
        stored = storage(dtype)
        symbols = plan.symbol_sizes(counts, stored.itemsize)
        self.bound = layout(plan, symbols, stored.itemsize, tile_bytes=tile_bytes)
        self.blocks = plan.schedule.blocks
        self.announced: dict[Place, int] = {}
        """The epoch whose packets lie in a unit."""
        self._buffers: dict[tuple[int, Space], Array] = {}
        for rank, given in enumerate(inputs):
            num_in = int(self.bound.inputs[rank][-1])
            num_out = int(self.bound.outputs[rank][-1])
            if given.ndim != 1 or given.dtype != stored or given.size != num_in:
                raise CallError(
                    f"rank {rank}: input of {given.size} {given.dtype} in {given.ndim} "
                    f"axes; want {num_in} {stored} in one"
                )
            x, out = given.copy(), _garbage(rng, num_out, stored)
            if in_place and num_in and num_out:
                x, out = _overlaid(plan, rank, symbols, x, out)
            self._buffers[rank, Space.INPUT] = x
            self._buffers[rank, Space.OUTPUT] = out
        units = [u * self.bound.tile * self.blocks * 2 for u in plan.stage_units]
        self._stage = [_garbage(rng, size, stored) for size in units]

    def output(self, rank: int) -> Array:
        """Return what a rank's output holds now, as a copy."""
        return self._buffers[rank, Space.OUTPUT].copy()

    def place(self, loc: Loc, i: int, block: int, epoch: int) -> Place:
        """Return the identity of the i-th piece of a location."""
        staged = loc.space is Space.STAGE
        part = epoch % 2 if staged else epoch
        return loc.rank, loc.space, loc.pos + i, block, part

    def view(self, loc: Loc, i: int, atom: int, block: int, epoch: int) -> Array:
        """Return the slice of one atom at a location that a block moves in an epoch."""
        tile, size = self.bound.tile, int(self.bound.atom_sizes[atom])
        start = min(size, (epoch * self.blocks + block) * tile)
        stop = min(size, start + tile)
        pos = loc.pos + i
        if loc.space is Space.STAGE:
            slot = (pos * self.blocks + block) * 2 + epoch % 2
            return self._stage[loc.rank][slot * tile : slot * tile + stop - start]
        side = self.bound.inputs if loc.space is Space.INPUT else self.bound.outputs
        base = int(side[loc.rank][pos])
        return self._buffers[loc.rank, loc.space][base + start : base + stop]


def _overlaid(
    plan: Plan, rank: int, symbols: Array, x: Array, out: Array
) -> tuple[Array, Array]:
    """Return a rank's input and output in one memory, as its collective lays them."""
    kind, shape = plan.kind, plan.shape
    at = kind.in_place(shape, rank)
    whole, part = (x, out) if at is None else (out, x)
    if at is None:  # the output is the rank's own part of the input
        first = kind.input_runs(shape, rank)[0].first
        at = kind.output_runs(shape, rank)[0].first - first
    else:
        first = kind.output_runs(shape, rank)[0].first
    skip = int(symbols[first : first + at].sum())
    inside = whole[skip : skip + part.size]
    if inside.size != part.size:
        raise CallError(
            f"rank {rank}: {part.size} elements in place at {skip} of {whole.size}; "
            f"want parts that fit, of equal counts"
        )
    if part is out:
        return whole, inside
    inside[:] = x
    return inside, whole


def _garbage(rng: np.random.Generator, size: int, stored: np.dtype[Any]) -> Array:
    """Return memory that holds what nobody wrote: small odd values, all different."""
    values: Array = rng.integers(1, 120, size)
    return values.astype(stored)
