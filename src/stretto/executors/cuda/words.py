"""Numbers and structures that the host and kernels agree on, each declared once.

What NumPy lays out here is what C lays out in `kernels/words.cuh`: its text is made of
these declarations (`scripts/words.py` writes it), and a test compares. A line of a
structure is a type, a name, how many, and what C's reader should know.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any

import numpy as np

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
HOST_SLOTS = 1024
HOST_RING_BEGIN = 64
"""Bytes of a ring of requests before the first; its first word counts what was taken.
"""
STEP_BLOCKS, STEP_RECORDS = 16, 4096
STEP_WORKERS = STEP_BLOCKS * MAX_LANES
WHOLE_CALL = 0xFFFF
"""In the place of a step."""
MOST_AXES = 8

CONTROL: dict[str, int] = {
    "broken": 0,
    "roll": 128,
    "launches": 384,
    "requests": 448,
    "epochs": 512,
    "flags": 512 + 8 * MAX_WORKERS,
    "sums": 512 + 8 * MAX_WORKERS + 8 * MAX_BLOCKS * MAX_LANES**2 * MAX_RANKS,
}
CONTROL["escaped"] = CONTROL["sums"] + 16 * 4 * BOARD * MAX_BLOCKS
"""Byte offsets in control memory."""

KINDS = ("none", "timeout", "mismatch", "told", "counts")
"""Why a rank gave up; `told`: rank `peer` gave up first, `absent` is what it saw, bits
48 to 55 of `got` its kind; `counts`: counts on the device, of rank `peer`, are more
than there is room for."""

AWAITED = {
    "A_STEP": "",
    "A_SIGNAL": "a signal",
    "A_PACKET": "a packet",
    "A_CHOICE": "a choice",
    "A_CALL": "the same call",
}
"""What a channel waited for, in C's words and in ours; a step is a plan's, a choice one
of the experts', which the peer was given and refuses, and a call what the peer is in,
by its fingerprint."""

_NUMBERS = {
    "MAX_RANKS": MAX_RANKS,
    "MAX_BLOCKS": MAX_BLOCKS,
    "MAX_LANES": MAX_LANES,
    "MAX_WORKERS": MAX_WORKERS,
    "CLERK": CLERK,
    "ESCAPES": ESCAPES,
    "BOARD": BOARD,
    "HOST_SLOTS": HOST_SLOTS,
    "HOST_RING_BEGIN": HOST_RING_BEGIN,
    "STEP_BLOCKS": STEP_BLOCKS,
    "STEP_RECORDS": STEP_RECORDS,
    "STEP_WORKERS": STEP_WORKERS,
    "WHOLE_CALL": WHOLE_CALL,
    "MOST_AXES": MOST_AXES,
}
_TYPES = {
    "u64": ("<u8", "unsigned long long"),
    "i64": ("<i8", "long long"),
    "u32": ("<u4", "unsigned"),
    "i32": ("<i4", "int"),
}
_FIELD = re.compile(r"(.*[ *])(\w+)(?:\[(\w+)\])?")
_structures: list[str] = []


def _struct(name: str, about: str, fields: str) -> np.dtype[Any]:
    """Declare a structure: return NumPy's layout, and keep the text of C's."""
    made: list[tuple[Any, ...]] = []
    lines = [f"// {about}", f"struct {name} {{"]
    for line in fields.strip().splitlines():
        said, _, why = (part.strip() for part in line.partition("#"))
        match = _FIELD.fullmatch(said)
        assert match is not None, f"{line!r} is a type and a name"
        kind, field, many = match[1].strip(), match[2], match[3]
        numpy, c = _TYPES.get(kind, ("<u8", kind))  # another: a pointer
        made.append((field, numpy, _NUMBERS[many]) if many else (field, numpy))
        end = f"[{many}];" if many else ";"
        lines.append(f"  {c} {field}{end}" + f"  // {why}" * bool(why))
    found = np.dtype(made)
    packed = np.dtype(made, align=True)
    assert found == packed, f"{name}: C would leave holes, in {packed}"
    lines += ["};", f'static_assert(sizeof({name}) == {found.itemsize}, "words.py");']
    _structures.append("\n".join([*lines, ""]))
    return found


PARAMS = _struct(
    "Params",
    "One rank's parameters; bases are addresses as this rank maps them, by rank.",
    """
    u64 input[MAX_RANKS]
    u64 output[MAX_RANKS]
    u64 stage[MAX_RANKS]
    u64 packets[MAX_RANKS]
    u64 control[MAX_RANKS]
    u64 record
    u64 deadline_ns
    u64 tile
    u32 tiles
    u32 fingerprint
    u64 stage_unit
    u64 packet_unit
    u64 stage_half
    u64 packet_half
    u64 far  # pinned: what ranks on other hosts write as they would in control memory
    u64 inbox  # pinned: what they put into our staging
    u64 ring  # pinned: requests to them
    """,
)
"""`input` and `output` of peers matter to zero-copy plans alone. `stage` and `packets`
are each rank's first half; the second begins `stage_half` (`packet_half`) bytes later.
Of a rank on another host `control` is 0 and `stage` the mirror of its staging. It
writes to our `far` what others write into `control`, and to our `inbox` what they put
into `stage`; both are pinned memory, and so is the `ring` of requests to it (ring.cuh).
`record` is host memory that the device writes; `tile`, `tiles` and the units of staging
are the layout's.
"""

RECORD = _struct(
    "Record",
    "What the first thread to give up writes, once, in host memory.",
    """
    u32 state  # 0 nothing, 1 being written, 2 complete
    u32 kind
    i32 rank
    i32 block
    i32 lane
    i32 thread
    i32 step  # of the lane; -1: entering; of counts: which, or -1 input, -2 output
    i32 peer  # whom it waited for; -1: nobody by name
    u32 absent  # bit q: rank q has not entered this launch
    u32 differ  # bit q: rank q entered it with another fingerprint
    u32 fingerprint  # of the call that gave up: the host names its plan
    u32 channel  # what a channel waited for; 0: a step of a plan
    u64 epoch
    u64 got  # the flag's value, the peer's fingerprint or broken word
    u64 want
    u64 launch
    u64 leave  # written by the host: not 0 once everybody is to give up
    """,
)

HOST_REQUEST = _struct(
    "HostRequest",
    "What a kernel asks of the thread that serves ranks on other hosts.",
    """
    u64 turn  # its number, from 1: written last
    u64 peer
    u64 at  # of staging
    u64 nbytes
    u64 word  # of control memory, from its beginning
    u64 value  # 0: no word
    u64 spare
    u64 spare_too
    """,
)

STEP_RECORD = _struct(
    "StepRecord",
    "When a step of a lane happened, by the device's clock.",
    """
    u64 what  # fingerprint, step << 32, worker << 48
    u64 epoch  # of the call's first tile: the same on all ranks
    u64 control  # which set of flags of which communicator
    u64 tile
    u64 begin
    u64 wait
    u64 end
    u64 spare
    """,
)

CHANNEL = _struct(
    "ChannelWords",
    "A channel of a block to a peer (channel.cuh).",
    """
    u64 local  # this rank's buffer
    u64 remote  # the peer's buffer, mapped here
    u64 inbox  # the word that the peer counts up, in our memory
    u64 outbox  # the word that we count up, in the peer's memory
    u64 counts  # ours alone: signals sent, signals seen
    u64 calls  # ours alone: calls of this block that have ended
    const Params* home
    i32 rank
    i32 peer
    """,
)

RUNS = _struct(
    "Runs",
    "The runs of a transfer (runs.cuh).",
    """
    const long long* src_chunk  # where each chunk begins, in every tensor
    const long long* dst_chunk
    const long long* src_box  # the address of each box's first element, in chunk 0
    const long long* dst_box
    u32 runs
    u32 boxes
    u32 box_runs
    u32 units  # vectors, or elements, of a run
    u32 size[MOST_AXES]
    i64 src_step[MOST_AXES]
    i64 dst_step[MOST_AXES]
    i64 src  # of one box and one chunk: where it begins, and no tables
    i64 dst
    unsigned long long* turns  # blocks that have ended, and calls so far
    unsigned long long* word  # gets the number of the call, where it is raised
    """,
)

STACKED = _struct(
    "Stacked",
    "Parts that lie one after the other (parts.cuh).",
    """
    const char* first
    char* out
    u64 step  # bytes from a part to the next
    u64 vectors  # of 16 bytes, in each part
    """,
)

MIXED = _struct(
    "Mixed",
    "Pieces of tensors, whose elements are added up, and copied (mixed.cuh).",
    """
    const unsigned long long* pieces  # source, copy or 0, bytes, sum << 8 | size
    unsigned* sums
    u32 count
    u32 unused
    """,
)

QUANTISED = _struct(
    "Quantised",
    "Matrices whose blocks become FP8, each with a scale (mixed.cuh).",
    """
    const char* src
    char* dst
    float* scales
    u32 planes
    u32 rows
    u32 columns
    u32 block_rows
    u32 block_columns
    u32 unused
    """,
)


def header() -> str:
    """Return the text of `kernels/words.cuh`."""
    numbers = [f"constexpr unsigned {k} = {v};" for k, v in _NUMBERS.items()]
    at = [
        f"constexpr unsigned long long {k.upper()} = {v};" for k, v in CONTROL.items()
    ]
    kinds = ", ".join(kind.upper() for kind in KINDS)
    return f"""// words.cuh -- what kernels and the host agree on.
// Written by scripts/words.py from words.py, which explains it; a test compares.
#pragma once

namespace stretto {{

{_lines(numbers)}

// Byte offsets in a rank's control memory.
{_lines(at)}

// Why a rank gave up.
enum Kind : unsigned {{ {kinds} }};

// What a channel waited for.
enum Awaited : unsigned {{ {", ".join(AWAITED)} }};

{_lines(_structures)}
}}  // namespace stretto
"""


def _lines(texts: Iterable[str]) -> str:
    return "\n".join(texts)
