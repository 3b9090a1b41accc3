"""What the host and a generated kernel agree on: one file, tested against the C side.

**Control memory**, one region per rank, at one offset of everybody's slab, zeroed
before anybody's kernel runs. Peers write to it; everything only ever counts upwards.

    broken     one word; not 0 once somebody gave up: every spin of the rank leaves
    roll       [2][MAX_RANKS] words: who entered launch L, with what (slot L & 1)
    launches   one word, own: launches so far; the kernel advances it
    requests   two words, own: what hosts were asked for, and what of it they had taken
    epochs     [MAX_WORKERS] words, own: epochs so far; the kernel advances it
    flags      [MAX_BLOCKS][lane to][lane from][MAX_RANKS] words: signals
    board      [MAX_BLOCKS][4][BOARD] vectors, own: sums of blocks that share rows
    escapes    [num_ranks][ESCAPES] words: packets whose data look like no data

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

from stretto.errors import PlanError
from stretto.plan import Layout, Move, Plan, Space

__all__ = [
    "AWAITED",
    "BOARD",
    "CLERK",
    "CONTROL",
    "ESCAPES",
    "KINDS",
    "MAX_BLOCKS",
    "MAX_LANES",
    "MAX_RANKS",
    "MAX_THREADS",
    "MAX_WORKERS",
    "PARAMS",
    "RECORD",
    "Footprint",
    "Kernel",
    "control_bytes",
    "fingerprint",
    "flag_offset",
    "footprint",
    "mixed",
    "pack",
]

MAX_RANKS = 16
MAX_BLOCKS = 256
MAX_LANES = 4
MAX_WORKERS = MAX_BLOCKS * MAX_LANES
"""Thread blocks of one launch and rank: worker = block * lanes + lane."""
CLERK = 32
"""Threads a block has beside the plan's: a warp that keeps roll, deadline, epochs."""
MAX_THREADS = 1024 - CLERK
ESCAPES = 1 << 17
"""The most threads a plan with packets may have in one rank, clerks left out."""
BOARD = 64
"""Sums of 32 cells that a block tells those it shares rows with, at a time."""

CONTROL: dict[str, int] = {
    "broken": 0,
    "roll": 128,
    "launches": 384,
    "requests": 448,
    "epochs": 512,
    "flags": 512 + 8 * MAX_WORKERS,
    "board": 512 + 8 * MAX_WORKERS + 8 * MAX_BLOCKS * MAX_LANES**2 * MAX_RANKS,
}
CONTROL["escapes"] = CONTROL["board"] + 16 * 4 * BOARD * MAX_BLOCKS
"""Byte offsets in control memory."""

PARAMS = np.dtype(
    [
        ("input", "<u8", MAX_RANKS),
        ("output", "<u8", MAX_RANKS),
        ("stage", "<u8", MAX_RANKS),
        ("packets", "<u8", MAX_RANKS),
        ("control", "<u8", MAX_RANKS),
        ("record", "<u8"),
        ("deadline_ns", "<u8"),
        ("tile", "<u8"),
        ("tiles", "<u4"),
        ("fingerprint", "<u4"),
        ("stage_unit", "<u8"),
        ("packet_unit", "<u8"),
        ("stage_half", "<u8"),
        ("packet_half", "<u8"),
        ("far", "<u8"),
        ("inbox", "<u8"),
        ("ring", "<u8"),
    ]
)
"""One rank's parameters. Bases are addresses as *this* rank maps them, by rank.

`input` and `output` of peers matter to zero-copy plans alone. `stage` and `packets` are
each rank's first half; the second begins `stage_half` (`packet_half`) bytes later.
Of a rank on another host `control` is 0 and `stage` the mirror of its staging. It
writes to our `far` what others write into `control`, and to our `inbox` what they put
into `stage`; both are pinned memory, and so is the `ring` of requests to it (ring.cuh).
`record` is host memory that the device writes; `tile`, `tiles` and the units of staging
are the layout's.
"""

RECORD = np.dtype(
    [
        ("state", "<u4"),  # 0 nothing, 1 being written, 2 complete
        ("kind", "<u4"),  # index into KINDS
        ("rank", "<i4"),
        ("block", "<i4"),
        ("lane", "<i4"),
        ("thread", "<i4"),
        ("step", "<i4"),  # index in the lane's steps; -1: entering the launch;
        # "counts": which count, or -1: the input's sum, -2: the output's
        ("peer", "<i4"),  # whom it waited for; -1: nobody by name
        ("absent", "<u4"),  # bit q: rank q has not entered this launch
        ("differ", "<u4"),  # bit q: rank q entered it with another fingerprint
        ("fingerprint", "<u4"),  # of the call that gave up: the host names its plan
        ("channel", "<u4"),  # index into AWAITED; 0: a step of a plan
        ("epoch", "<u8"),
        ("got", "<u8"),  # the flag's value, the peer's fingerprint or broken word
        ("want", "<u8"),
        ("launch", "<u8"),
        ("leave", "<u8"),  # the host writes: not 0 once everybody is to give up
    ]
)
"""What the first thread to give up writes, once, in host memory."""

KINDS = ("none", "timeout", "mismatch", "told", "counts")
"""Why a rank gave up; `told`: rank `peer` gave up first, `absent` is what it saw, bits
48 to 55 of `got` its kind; `counts`: counts on the device, of rank `peer`, are more
than there is room for."""

AWAITED = (
    "",
    "a signal",
    "a packet",
    "a signal of its copy engine",
    "our own copies to it",
    "room in the ring of requests, which the proxy thread empties",
)
"""What a channel waited for (waiting.cuh: Awaited)."""


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


def footprint(plan: Plan, where: Layout, rank: int) -> Footprint:
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
    return CONTROL["escapes"] + 8 * num_ranks * ESCAPES


def flag_offset(block: int, lane: int, peer: int, peer_lane: int) -> int:
    """Return where in control memory a peer's lane signals to a block's lane."""
    index = (block * MAX_LANES + lane) * MAX_LANES + peer_lane
    return CONTROL["flags"] + 8 * (index * MAX_RANKS + peer)


def fingerprint(plan: Plan, dtype: str, op: str, counts: Sequence[int]) -> int:
    """Return 32 bits that calls of one kind share; not 0."""
    text = f"{plan.digest} {dtype} {op} {tuple(int(c) for c in counts)}"
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:4], "little") or 1


def mixed(fingerprint: int, also: tuple[int | None, ...]) -> int:
    """Return a fingerprint that says more: a form, or where zero-copy arrays lie.

    Ranks whose arrays lie at different offsets then differ, and are told so.
    """
    text = repr((fingerprint, also)).encode()
    return zlib.crc32(text) or 1


def pack(
    kernel: Kernel,
    where: Layout,
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


def _word(entry: tuple[str, int, int], where: Layout, extra: Sequence[int]) -> int:
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
