"""Where rows go, and the loops that move and add them, compiled.

Legend: T tokens, k choices of each, n ranks, R rows that came, H elements of a row. An
id of -1 is no expert. Every place is a count of what stands before it: a routing has
one outcome, whoever runs first.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from stretto.experts.elements import add, narrow, of_each
from stretto.fabric.jit.atomics import compiled, fence
from stretto.fabric.jit.libc import memcpy
from stretto.transfer.copying.compiled import copy

_TABLE = "int64[:,::1]"
_LINE = "int64[::1]"
_IDS = "int32[:,::1]"
_WEIGHTS = "float32[:,::1]"


@compiled(f"int64({_TABLE},{_LINE},{_TABLE},{_LINE},{_TABLE},{_LINE})", lean=True)
def mapped(
    ids: Any, owner: Any, slots: Any, counts: Any, pairs: Any, num_pairs: Any
) -> int:
    """Map T x k ids to slots of T x n rows, and to pairs; return a bad id, or -1.

    A token has one slot at each rank that owns one of its experts, in order of tokens.
    A pair of a token and a choice has a number among those of the expert's rank.
    """
    slots[:, :] = -1
    pairs[:, :] = -1
    for t in range(ids.shape[0]):
        for j in range(ids.shape[1]):
            e = ids[t, j]
            if e == -1:
                continue
            if e < 0 or e >= owner.shape[0]:
                return t * ids.shape[1] + j  # type: ignore[no-any-return]
            q = owner[e]
            if slots[t, q] < 0:
                slots[t, q] = counts[q]
                counts[q] += 1
            pairs[t, j] = num_pairs[q]
            num_pairs[q] += 1
    return -1


@compiled(
    f"void({_TABLE},{_TABLE},{_WEIGHTS},{_LINE},{_LINE},int32[::1],{_LINE},{_LINE})",
    lean=True,
)
def send_records(
    slots: Any, ids: Any, weights: Any, owner: Any, local: Any, choices: Any,
    targets: Any, words: Any,
) -> None:  # fmt: skip
    """Store each token's record at every rank that gets it.

    A record is row, scales, k ids, k weights; ids are the receiver's, -1 where another
    rank owns the expert. `words`: rows, bytes of one, scales, bytes of those, bytes of
    a record, where ids begin in it, this rank, whether to store past the caches, bytes
    from a row to the next and from its scales to the next. Of what goes to this rank
    itself the row stays where it is. `choices` is scratch.
    """
    rows, row_bytes, scales, scale_bytes = words[0], words[1], words[2], words[3]
    record, ids_at, k, me, past = words[4], words[5], ids.shape[1], words[6], words[7]
    for t in range(slots.shape[0]):
        for q in range(slots.shape[1]):
            if slots[t, q] < 0:
                continue
            to = targets[q] + slots[t, q] * record
            if q != me:
                copy(to, rows + t * words[8], row_bytes, past)
                if scale_bytes:
                    memcpy(to + row_bytes, scales + t * words[9], scale_bytes)
            for j in range(k):
                e = ids[t, j]
                choices[j] = local[e] if e >= 0 and owner[e] == q else -1
            memcpy(to + ids_at, choices.ctypes.data, 4 * k)
            memcpy(to + ids_at + 4 * k, weights.ctypes.data + 4 * k * t, 4 * k)
    fence()


@compiled(f"void({_LINE},{_LINE},{_IDS},{_WEIGHTS},{_LINE})", lean=True)
def read_choices(sources: Any, counts: Any, ids: Any, weights: Any, words: Any) -> None:
    """Read ids and weights of all records that came, in order of ranks and slots.

    `words`: bytes of a record, and where ids begin in it.
    """
    k, r = ids.shape[1], 0
    for s in range(counts.shape[0]):
        for slot in range(counts[s]):
            at = sources[s] + slot * words[0] + words[1]
            memcpy(ids.ctypes.data + 4 * k * r, at, 4 * k)
            memcpy(weights.ctypes.data + 4 * k * r, at + 4 * k, 4 * k)
            r += 1


@compiled(f"void({_IDS},{_LINE},{_LINE},{_TABLE},int64)", lean=True)
def placed(ids: Any, counts: Any, starts: Any, places: Any, align: int) -> None:
    """Place R x k choices at their experts: in order of rows, each expert aligned.

    `counts` gets how many each expert has, and `starts` where it begins and all end.
    """
    counts[:] = 0
    for r in range(ids.shape[0]):
        for j in range(ids.shape[1]):
            e = ids[r, j]
            places[r, j] = -1
            if e >= 0:
                places[r, j] = counts[e]
                counts[e] += 1
    starts[0] = 0
    for e in range(counts.shape[0]):
        starts[e + 1] = starts[e] + (counts[e] + align - 1) // align * align
    for r in range(ids.shape[0]):
        for j in range(ids.shape[1]):
            if ids[r, j] >= 0:
                places[r, j] += starts[ids[r, j]]


@compiled(f"void({_LINE},{_LINE},{_TABLE},{_LINE},{_TABLE},{_LINE})", lean=True)
def spread(
    sources: Any, counts: Any, places: Any, outputs: Any, slots: Any, words: Any
) -> None:
    """Copy what came to its places: a part of each record into lines of an output.

    `places` has those of a row, -1 for none; `outputs` are rows and scales. `words`:
    bytes of a record, and of the parts, this rank, where its own rows and scales are,
    whether to store past the caches.
    """
    r, row, scale, me, t, past = 0, words[1], words[2], words[3], -1, words[6]
    for s in range(counts.shape[0]):
        for slot in range(counts[s]):
            at = sources[s] + slot * words[0]
            scales = at + row
            if s == me:
                t += 1
                while slots[t, me] < 0:
                    t += 1
                at, scales = words[4] + t * row, words[5] + t * scale
            for j in range(places.shape[1]):
                if places[r, j] < 0:
                    continue
                copy(outputs[0] + places[r, j] * row, at, row, past)
                if scale:
                    memcpy(outputs[1] + places[r, j] * scale, scales, scale)
            r += 1
    fence()


@compiled(f"void({_LINE},{_TABLE},int64,{_LINE},int64,int64)", lean=True)
def send_back(
    counts: Any, places: Any, rows: int, targets: Any, row_bytes: int, past: int
) -> None:
    """Store each choice's row at the rank that it came from, as it is."""
    r = 0
    for s in range(counts.shape[0]):
        to = targets[s]
        for _ in range(counts[s]):
            for j in range(places.shape[1]):
                if places[r, j] >= 0:
                    copy(to, rows + places[r, j] * row_bytes, row_bytes, past)
                    to += row_bytes
            r += 1
    fence()


@compiled(
    *of_each(
        f"void({_LINE},{_TABLE},{_WEIGHTS},item[:,::1],item[::1],float32[::1],{_LINE},"
        "int64,int64)"
    ),
    lean=True,
)
def send_sums(
    counts: Any, places: Any, weights: Any, rows: Any, line: Any, total: Any,
    targets: Any, kind: int, past: int,
) -> None:  # fmt: skip
    """Store sums of rows at the ranks that they came from; two are scratch."""
    r, row_bytes = 0, line.itemsize * line.shape[0]
    for s in range(counts.shape[0]):
        for slot in range(counts[s]):
            total[:] = 0
            for j in range(places.shape[1]):
                if places[r, j] >= 0:
                    add(total, rows, places[r, j], weights[r, j], kind)
            narrow(total, line, kind)
            copy(targets[s] + slot * row_bytes, line.ctypes.data, row_bytes, past)
            r += 1
    fence()


@compiled(
    *of_each(f"void({_TABLE},{_LINE},item[:,::1],item[:,::1],float32[::1],int64)"),
    lean=True,
)
def sum_slots(
    slots: Any, starts: Any, rows: Any, out: Any, total: Any, kind: int
) -> None:
    """Sum a token's rows of all ranks, in order of ranks; `total` is scratch."""
    for t in range(slots.shape[0]):
        total[:] = 0
        for q in range(slots.shape[1]):
            if slots[t, q] >= 0:
                add(total, rows, starts[q] + slots[t, q], np.float32(1.0), kind)
        narrow(total, out[t], kind)


@compiled(
    *of_each(
        f"void({_TABLE},{_TABLE},{_LINE},{_LINE},{_WEIGHTS},item[:,::1],item[:,::1],"
        "float32[::1],int64)"
    ),
    lean=True,
)
def sum_pairs(
    ids: Any, pairs: Any, owner: Any, starts: Any, weights: Any, rows: Any, out: Any,
    total: Any, kind: int,
) -> None:  # fmt: skip
    """Sum a token's rows of all choices, in their order; `total` is scratch."""
    for t in range(ids.shape[0]):
        total[:] = 0
        for j in range(ids.shape[1]):
            if pairs[t, j] >= 0:
                at = starts[owner[ids[t, j]]] + pairs[t, j]
                add(total, rows, at, weights[t, j], kind)
        narrow(total, out[t], kind)
