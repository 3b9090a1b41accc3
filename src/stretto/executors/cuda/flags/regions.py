"""How the first part of a slab is divided: sets of control memory and staging.

Which launches use which set, and in what order, `flagsets.py` says.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from stretto.compiler.plan import Plan, PlanLayout, layout
from stretto.errors import CallError, PlanError
from stretto.executors import Call
from stretto.executors.cuda.codegen.abi import control_bytes, footprint
from stretto.executors.cuda.flags.testimony import PAGE_BYTES
from stretto.program.elements import storage

HALVES = {"stage": 32 << 20, "packets": 16 << 20}
"""Bytes of one half of each kind of staging, in every set."""
PAIR_SHARE = 4
"""What two ranks that only transfer have of that: a part of HALVES."""
FAR_SHARE = 16
"""What ranks on several hosts have: each mirrors the others' staging (hosts)."""
MOST_TILE = 1 << 31
"""Bytes of a tile: kernels count a slice's in 32 bits, and step beyond its end."""
PAGE, GRAIN = 4096, 2 << 20
"""Of what is told apart in it, and of what is mapped apart."""
_MOST_SETS = 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class FlagRegion:
    """Where one set lies in everybody's slab."""

    control: int
    stage: int
    packets: int
    counts: int
    """Where a call finds the counts of all ranks that lie on the device."""
    share: int = 1
    """Its staging is this part of HALVES."""

    halves: Mapping[str, int] = field(init=False, compare=False)
    """Bytes of one half of each kind of its staging."""

    def __post_init__(self) -> None:
        """Divide them."""
        halves = {kind: whole // self.share for kind, whole in HALVES.items()}
        object.__setattr__(self, "halves", halves)


class Divided(NamedTuple):
    """The first part of a slab: what kernels count in first, which always stays."""

    sets: tuple[FlagRegion, ...]
    page: int
    """A page of words for peers."""
    staging: int
    """Where control memory ends, and staging begins."""
    total: int


def regions(num_ranks: int, *, channel: bool = False, far: bool = False) -> Divided:
    """Return how the slab of a session is divided.

    Two ranks that only transfer have one set, with a part of the staging; `far`: some
    are on other hosts.
    """
    share = FAR_SHARE if far else PAIR_SHARE if channel else 1
    starts: list[dict[str, int]] = []
    at = 0
    for _ in range(1 if channel else _wanted_sets()):
        starts.append({"control": at})
        at += -(-control_bytes(num_ranks) // PAGE) * PAGE
        starts[-1]["counts"] = at
        at += PAGE
    page, staging = at, -(-(at + PAGE_BYTES) // GRAIN) * GRAIN
    at = staging
    for one in starts:
        for kind, nbytes in HALVES.items():
            one[kind] = at
            at += 2 * (nbytes // share)
    sets = tuple(FlagRegion(**one, share=share) for one in starts)
    return Divided(sets, page, staging, at)


def _wanted_sets() -> int:
    text = os.environ.get("STRETTO_CUDA_STREAMS", "4")
    is_number = text.isascii() and text.isdigit() and len(text) < 10
    if not is_number or not 0 < int(text) <= _MOST_SETS:
        raise CallError(
            f"STRETTO_CUDA_STREAMS={text[:60]}; want a number from 1 on, at most "
            f"{_MOST_SETS}"
        )
    return int(text)


def fit(
    plan: Plan,
    sizes: NDArray,  # type: ignore[type-arg]
    itemsize: int,
    *,
    grain: int = 1,
    share: int = 0,
    region: FlagRegion | None = None,
) -> PlanLayout:
    """Return the layout with the largest tiles whose staging fits on every rank.

    `grain` elements are never divided (an epilogue's row): `sizes` counts them. With a
    `share`, a slice is one row, or a part of it: so many blocks that follow one another
    have a row together.
    """
    rooms = region.halves if region else HALVES
    sizes, grain = sizes * max(1, share), grain // max(1, share)
    nbytes = itemsize * grain
    tile_bytes = nbytes if share else min(plan.schedule.tile_bytes, MOST_TILE)
    while True:
        where = layout(plan, sizes, nbytes, tile_bytes=tile_bytes)
        needs = [footprint(plan, where, r) for r in range(plan.num_ranks)]
        if all(getattr(n, k) <= room for n in needs for k, room in rooms.items()):
            return where if grain == 1 else _in_elements(where, grain)
        if where.tile * nbytes <= max(16, nbytes):
            units = max(plan.stage_units) * plan.schedule.blocks
            of = f" of {nbytes} bytes, a row each," if grain > 1 else ""
            raise PlanError(
                f"plan {plan.name}: {units} units of staging{of} for every epoch do "
                f"not fit in {rooms} bytes; want fewer blocks"
            )
        tile_bytes = min(tile_bytes, where.tile * nbytes) // 2


def _in_elements(where: PlanLayout, grain: int) -> PlanLayout:
    return replace(
        where,
        atom_sizes=where.atom_sizes * grain,
        inputs=tuple(offsets * grain for offsets in where.inputs),
        outputs=tuple(offsets * grain for offsets in where.outputs),
        tile=where.tile * grain,
    )


def symbol_sizes(plan: Plan, call: Call, grain: int = 1) -> Any:
    """Return the sizes of a plan's symbols, in grains that are never divided."""
    itemsize = storage(call.dtype).itemsize * grain
    return plan.symbol_sizes(np.asarray(call.counts) // grain, itemsize)
