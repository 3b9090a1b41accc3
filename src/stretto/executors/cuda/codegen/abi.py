"""What the host and a generated kernel agree on; `words` has the layouts.

**Control memory**, one region per rank, at one offset of everybody's slab, zeroed
before anybody's kernel runs. Peers write to it; everything only ever counts upwards.

    broken     one word; not 0 once somebody gave up: every spin of the rank leaves
    roll       [2][MAX_RANKS] words: who entered launch L, with what (slot L & 1)
    launches   one word, own: launches so far; the kernel advances it
    requests   two words, own: what hosts were asked for, and what of it they had taken
    epochs     [MAX_WORKERS] words, own: epochs so far; the kernel advances it
    flags      [MAX_BLOCKS][lane to][lane from][MAX_RANKS] words: signals
    sums       [MAX_BLOCKS][4][BOARD] vectors, own: sums of blocks that share rows
    escaped    [num_ranks][ESCAPES] words: packets whose data look like no data

**Epochs.** Every launch of whatever plan advances all epoch words by its `tiles`, so
that all blocks of all ranks count alike, and memory may be laid out anew by every
launch. Staging is two halves, by parity of the epoch. Two kinds never share bytes:

    stage      plain data; may hold anything between launches
    packets    sentinel words; every byte is 0 between launches (so: starts as zero)

**Parameters.** One `PARAMS` record per rank, followed by `table`: 64-bit words that a
`Kernel` names, in its order (offsets and sizes in elements). A kernel made for all
ranks at once takes the records of all ranks, one after another.

The way from a plan to a launch, with nothing here that needs a GPU:

    kernel = generate(plan, rank=1, dtype="bfloat16", op=Operator.SUM)  # generate.py
    image = compile_kernel(kernel, arch=(9, 0))  # compile.py: a cubin, cached on disk
    words = pack(kernel, layout(plan, sizes, itemsize), {"input": [...], ...})
    # cuLaunchKernel(image's kernel.symbol, kernel.grid, kernel.threads, one argument:
    # `words`); the launch needs nothing else, and nothing changes but pointers
"""

from __future__ import annotations

import hashlib
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from stretto.compiler.plan import Move, Plan, PlanLayout, Space
from stretto.errors import PlanError
from stretto.executors.cuda.words import (
    CONTROL,
    ESCAPES,
    MAX_LANES,
    MAX_RANKS,
    PARAMS,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Kernel:
    """A generated kernel: its text and how to launch it."""

    text: str
    symbol: str = "stretto_kernel"
    ranks: tuple[int, ...]
    """The ranks it runs: one, or all of them in one launch."""
    grid: int
    """Thread blocks, all of which must be resident at once."""
    threads: int
    """Threads of a block, the clerk included."""
    table: tuple[tuple[str, int, int], ...] = ()
    """Words of the table: ("size", atom, 0), ("input"|"output", rank, position), or
    ("extra", i, 0): the i-th of what an epilogue needs."""
    least_arch: tuple[int, int] = (7, 0)
    """The first architecture that has all of its instructions."""
    options: tuple[str, ...] = ()
    """Options for the compiler beside the architecture."""
    steps: bool = False
    """Whether it writes when its steps happened, where `stretto_steps` says."""

    digest: str = field(init=False)
    """The identity of the text."""

    def __post_init__(self) -> None:
        """Take it."""
        digest = hashlib.sha256(self.text.encode()).hexdigest()[:12]
        object.__setattr__(self, "digest", digest)


@dataclass(frozen=True, slots=True, kw_only=True)
class Footprint:
    """Bytes that a plan needs of one half of each kind of staging, on one rank."""

    stage: int
    packets: int


def footprint(plan: Plan, where: PlanLayout, rank: int) -> Footprint:
    """Return the staging that a plan needs on a rank."""
    spaces = {
        (loc.rank, loc.packets)
        for _, _, _, step in plan.steps()
        if isinstance(step, Move)
        for loc in (*step.dsts, *step.srcs)
        if loc.space is Space.STAGE
    }
    half = plan.stage_units[rank] * plan.schedule.blocks * where.unit_bytes
    return Footprint(
        stage=half * ((rank, False) in spaces),
        packets=half * ((rank, True) in spaces),
    )


def control_bytes(num_ranks: int) -> int:
    """Return the size of a rank's control memory."""
    return CONTROL["escaped"] + 8 * num_ranks * ESCAPES


def flag_offset(block: int, lane: int, peer: int, peer_lane: int) -> int:
    """Return where in control memory a peer's lane signals to a block's lane."""
    index = (block * MAX_LANES + lane) * MAX_LANES + peer_lane
    return CONTROL["flags"] + 8 * (index * MAX_RANKS + peer)


def mixed(fingerprint: int, also: tuple[int | None, ...]) -> int:
    """Return a fingerprint that says more: a form, or where zero-copy arrays lie.

    Ranks whose arrays lie at different offsets then differ, and are told so.
    """
    text = repr((fingerprint, also)).encode()
    return zlib.crc32(text) or 1


def pack(
    kernel: Kernel,
    where: PlanLayout,
    fields: Mapping[str, Any],
    extra: Sequence[int] = (),
) -> NDArray[np.uint8]:
    """Return one rank's parameters as bytes, table included.

    `fields` names those of `PARAMS` that the layout does not say; the rest are 0. View
    the first `PARAMS.itemsize` bytes as `PARAMS` to change pointers later.
    """
    head = np.zeros(1, PARAMS)
    head["tile"], head["tiles"] = where.tile, where.tiles
    head["stage_unit"] = head["packet_unit"] = where.unit_bytes
    for name, value in fields.items():
        if name not in (PARAMS.names or ()):
            raise PlanError(f"parameter {name!r}; want one of {PARAMS.names}")
        value = np.asarray(value, dtype=np.uint64)
        if head[name].ndim == 2:
            head[name][0, : value.size] = value
        else:
            head[name] = value
    words = [_word(e, where, extra) for e in kernel.table]
    table = np.array(words or [0], np.int64)  # C++ has no empty structure
    return np.concatenate([head.view(np.uint8), table.view(np.uint8)])


def _word(entry: tuple[str, int, int], where: PlanLayout, extra: Sequence[int]) -> int:
    kind, first, second = entry
    match kind:
        case "size":
            return int(where.atom_sizes[first])
        case "input":
            return int(where.inputs[first][second])
        case "output":
            return int(where.outputs[first][second])
    assert kind == "extra"  # the generator writes no other
    return int(np.uint64(extra[first]).astype(np.int64))
