"""Where a plan's atoms lie for given counts: sizes, offsets, tiles.

All ranks compute the same layout from the same counts, so nothing is exchanged.
Legend: a atom, p position in a buffer, u unit of staging, t tile-iteration, b block.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from stretto.compiler.plan.plan import BufferRun, Plan
from stretto.program.ir import ALIGNMENT

Ints = NDArray[np.int64]


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanLayout:
    """A plan bound to counts. Everything is in elements unless it says bytes."""

    atom_sizes: Ints
    inputs: tuple[Ints, ...]
    """For each rank, the offset of every position of its input, and its end."""
    outputs: tuple[Ints, ...]
    tile: int
    """Elements of an atom's slice that a block moves in one epoch."""
    tiles: int
    """Epochs of a call: block b, iteration t takes [(t*blocks + b)*tile, + tile)."""
    unit_bytes: int
    """Bytes of one unit of staging, for one block: a tile, 128-byte aligned."""


def layout(
    plan: Plan, symbol_sizes: Ints, itemsize: int, *, tile_bytes: int | None = None
) -> PlanLayout:
    """Return where everything lies for the given sizes of the plan's symbols."""
    ends = np.concatenate([[0], np.cumsum(symbol_sizes, dtype=np.int64)])
    spans = np.asarray(plan.atoms, dtype=np.int64).reshape(-1, 2)
    sizes: Ints = ends[spans[:, 1]] - ends[spans[:, 0]]
    largest = int(sizes.max(initial=0))
    blocks = plan.schedule.blocks
    unit = max(1, ALIGNMENT // itemsize)
    most = max(unit, (tile_bytes or plan.schedule.tile_bytes) // itemsize)
    tiles = max(1, math.ceil(largest / (blocks * most)))
    tile = math.ceil(math.ceil(largest / (blocks * tiles)) / unit) * unit
    return PlanLayout(
        atom_sizes=sizes,
        inputs=tuple(_offsets(runs, sizes) for runs in plan.inputs),
        outputs=tuple(_offsets(runs, sizes) for runs in plan.outputs),
        tile=max(tile, unit),
        tiles=tiles,
        unit_bytes=math.ceil(max(tile, unit) * itemsize / 128) * 128,
    )


def _offsets(runs: tuple[BufferRun, ...], sizes: Ints) -> Ints:
    parts = [sizes[r.atom : r.atom + r.stop - r.start] for r in runs]
    return np.concatenate([[0], np.cumsum(np.concatenate(parts))]) if parts else _NONE


_NONE: Ints = np.zeros(1, dtype=np.int64)
