"""Kernels of a decoding layer, as serving engines have them: in Triton.

    thin        the product of few tokens and a matrix, streamed once; with its gate
    attend      rotation, the new place of the cache, and attention over all places
    add_norm    the norm of a sum that stays
    silu_times  the gate by itself, behind a product of cuBLAS

Without them a layer is a dozen small kernels of PyTorch, whose time hides what
communication costs. Every variant of a benchmark uses the same ones. They are launched
so that each may begin while the one before it ends (programmatic dependent launch): it
fetches what that one does not write, weights and old places of the cache, into the L2,
and then waits. Results are those of plain PyTorch; torch_llama_choice.py checks that.
"""

from __future__ import annotations

import os

import triton
import triton.language as tl
from triton.language.extra import cuda as on_cuda

INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"
EARLY = tl.constexpr(not INTERPRETED)
"""Whether kernels may begin early; the interpreter knows nothing of that."""


@triton.jit
def _fetch(at: tl.tensor, nbytes: tl.constexpr) -> None:
    """Fetch bytes from each of these addresses into the L2."""
    if nbytes == 1024:
        tl.inline_asm_elementwise(
            "cp.async.bulk.prefetch.L2.global [$1], 1024; mov.u32 $0, 0;", "=r,l",
            [at.to(tl.int64)], dtype=tl.int32, is_pure=False, pack=1,
        )  # fmt: skip
    else:
        tl.inline_asm_elementwise(
            "cp.async.bulk.prefetch.L2.global [$1], 256; mov.u32 $0, 0;", "=r,l",
            [at.to(tl.int64)], dtype=tl.int32, is_pure=False, pack=1,
        )  # fmt: skip


@triton.jit
def _after_earlier() -> None:
    """Wait for all that the kernels before have written; let the next one begin."""
    on_cuda.gdc_wait()
    on_cuda.gdc_launch_dependents()


@triton.jit
def _gate(gate: tl.tensor, up: tl.tensor) -> tl.tensor:
    return gate / (1.0 + tl.exp(-gate)) * up


@triton.jit
def _summed(
    at: tl.tensor, real: tl.tensor, step: tl.constexpr, splits: tl.constexpr
) -> tl.tensor:
    """What all splits have left, added in their order."""
    total = tl.load(at, mask=real, other=0.0, cache_modifier=".cg")
    for part in tl.static_range(1, splits):
        total += tl.load(at + part * step, mask=real, other=0.0, cache_modifier=".cg")
    return total


@triton.jit
def _thin(
    x: tl.tensor, w: tl.tensor, y: tl.tensor, sums: tl.tensor, came: tl.tensor,
    tokens: tl.tensor, rows: tl.tensor, columns: tl.tensor, block_m: tl.constexpr,
    block_n: tl.constexpr, block_k: tl.constexpr, splits: tl.constexpr,
    gated: tl.constexpr, ahead: tl.constexpr,
) -> None:  # fmt: skip
    """Some rows of w, and a part of their columns, times all tokens.

    Who comes last adds up the parts of the columns, in their order.
    """
    tile, split = tl.program_id(0), tl.program_id(1)
    each = columns // splits
    n = tile * block_n + tl.arange(0, block_n)
    m, k = tl.arange(0, block_m), tl.arange(0, block_k)
    begin = tl.multiple_of(split * each, block_k)  # so loads are as wide as can be
    first = w + n.to(tl.int64) * columns + begin
    second = first + rows.to(tl.int64) * columns
    if EARLY:
        if ahead:
            _fetch(first, 1024)
            if gated:
                _fetch(second, 1024)
        _after_earlier()
    x_at = x + m[None, :] * columns + begin + k[:, None]
    w_at, v_at = first[:, None] + k[None, :], second[:, None] + k[None, :]
    real = m[None, :] < tokens
    acc = tl.zeros([block_n, block_m], tl.float32)
    up = tl.zeros([block_n, block_m], tl.float32)
    for start in range(0, each, block_k):
        some = tl.load(x_at + start, mask=real, other=0.0)
        acc = tl.dot(tl.load(w_at + start), some, acc)
        if gated:
            up = tl.dot(tl.load(v_at + start), some, up)
    y_at = y + m[None, :] * rows + n[:, None]
    if splits == 1:
        made = _gate(acc, up) if gated else acc
        tl.store(y_at, made.to(y.dtype.element_ty), mask=real)
    else:
        size: tl.constexpr = block_n * block_m
        within = tl.arange(0, block_n)[:, None] * block_m + m[None, :]
        mine = sums + tile * splits * (2 * size) + within
        tl.store(mine + split * (2 * size), acc, mask=real)
        if gated:
            tl.store(mine + split * (2 * size) + size, up, mask=real)
        tl.debug_barrier()
        if tl.atomic_add(came + tile, 1, sem="acq_rel") == splits - 1:
            made = _summed(mine, real, 2 * size, splits)
            if gated:
                made = _gate(made, _summed(mine + size, real, 2 * size, splits))
            tl.store(y_at, made.to(y.dtype.element_ty), mask=real)
            tl.store(came + tile, 0)


@triton.jit
def _turned(
    a: tl.tensor, b: tl.tensor, c: tl.tensor, s: tl.tensor, first: tl.constexpr
) -> tl.tensor:
    """One half of rows that are turned, rounded as they are stored."""
    wide_a, wide_b = a.to(tl.float32), b.to(tl.float32)
    made = wide_a * c - wide_b * s if first else wide_b * c + wide_a * s
    return made.to(a.dtype)


@triton.jit
def _old_places(
    a: tl.tensor,
    b: tl.tensor,
    keys: tl.tensor,
    values: tl.tensor,
    start: tl.tensor,
    end: tl.tensor,
    last: tl.tensor,
    scale: tl.constexpr,
    half: tl.constexpr,
    group: tl.constexpr,
    block: tl.constexpr,
) -> tl.tensor:
    """Attention over places before the last: maxima, weights in all, sums in halves."""
    h, p = tl.arange(0, half), tl.arange(0, block)
    most = tl.full([group], -1e30, tl.float32)
    total = tl.zeros([group], tl.float32)
    acc1 = tl.zeros([group, half], tl.float32)
    acc2 = tl.zeros([group, half], tl.float32)
    for at in range(start, end, block):
        k_at = keys + (at + p)[None, :] * (2 * half) + h[:, None]
        v_at = values + (at + p)[:, None] * (2 * half) + h[None, :]
        old = (at + p)[None, :] < last
        scores = tl.dot(a, tl.load(k_at))
        scores = tl.dot(b, tl.load(k_at + half), scores)
        scores = tl.where(old, scores * scale, -1e30)
        now = tl.maximum(most, tl.max(scores, 1))
        weight = tl.where(old, tl.exp2(scores - now[:, None]), 0.0)
        shrink = tl.exp2(most - now)
        total = total * shrink + tl.sum(weight, 1)
        narrow, before = weight.to(a.dtype), old.trans()
        v1 = tl.load(v_at, mask=before, other=0.0)
        v2 = tl.load(v_at + half, mask=before, other=0.0)
        acc1 = tl.dot(narrow, v1, acc1 * shrink[:, None])
        acc2 = tl.dot(narrow, v2, acc2 * shrink[:, None])
        most = now
    return most, total, acc1, acc2


@triton.jit
def _joined(
    sums: tl.tensor, half: tl.constexpr, group: tl.constexpr, splits: tl.constexpr
) -> tl.tensor:
    """What all splits have left, as one."""
    wide_row: tl.constexpr = 2 * half + 2
    g, h = tl.arange(0, group), tl.arange(0, half)
    most = tl.full([group], -1e30, tl.float32)
    total = tl.zeros([group], tl.float32)
    acc1 = tl.zeros([group, half], tl.float32)
    acc2 = tl.zeros([group, half], tl.float32)
    for part in tl.static_range(splits):
        theirs = sums + part * (group * wide_row) + g * wide_row
        their_most = tl.load(theirs + 2 * half, cache_modifier=".cg")
        their_total = tl.load(theirs + 2 * half + 1, cache_modifier=".cg")
        cell = theirs[:, None] + h[None, :]
        now = tl.maximum(most, their_most)
        shrink, grow = tl.exp2(most - now), tl.exp2(their_most - now)
        acc1 = acc1 * shrink[:, None]
        acc1 += tl.load(cell, cache_modifier=".cg") * grow[:, None]
        acc2 = acc2 * shrink[:, None]
        acc2 += tl.load(cell + half, cache_modifier=".cg") * grow[:, None]
        total = total * shrink + their_total * grow
        most = now
    return total, acc1, acc2


@triton.jit
def _store_halves(
    at: tl.tensor, one: tl.tensor, other: tl.tensor, real: tl.tensor, half: tl.constexpr
) -> None:
    tl.store(at, one.to(at.dtype.element_ty), mask=real)
    tl.store(at + half, other.to(at.dtype.element_ty), mask=real)


@triton.jit
def _end(
    out: tl.tensor, sums: tl.tensor, came: tl.tensor, split: tl.tensor,
    most: tl.tensor, total: tl.tensor, acc1: tl.tensor, acc2: tl.tensor,
    per: tl.constexpr, half: tl.constexpr, group: tl.constexpr, splits: tl.constexpr,
) -> None:  # fmt: skip
    """Store what attention has found, or leave it to who comes last."""
    g, h = tl.arange(0, group), tl.arange(0, half)
    real, at = g[:, None] < per, out + g[:, None] * (2 * half) + h[None, :]
    if splits == 1:
        _store_halves(at, acc1 / total[:, None], acc2 / total[:, None], real, half)
    else:
        wide_row: tl.constexpr = 2 * half + 2
        mine = sums + split * (group * wide_row) + g * wide_row
        _store_halves(mine[:, None] + h[None, :], acc1, acc2, g[:, None] < group, half)
        tl.store(mine + 2 * half, most)
        tl.store(mine + 2 * half + 1, total)
        tl.debug_barrier()
        if tl.atomic_add(came, 1, sem="acq_rel") == splits - 1:
            whole, one, other = _joined(sums, half, group, splits)
            _store_halves(at, one / whole[:, None], other / whole[:, None], real, half)
            tl.store(came, 0)


@triton.jit
def _attend(
    made: tl.tensor, cos: tl.tensor, sin: tl.tensor, keys: tl.tensor,
    values: tl.tensor, out: tl.tensor, sums: tl.tensor, came: tl.tensor,
    sequence_step: tl.tensor, head_step: tl.tensor, places: tl.tensor,
    scale: tl.constexpr, heads: tl.constexpr, kv: tl.constexpr, half: tl.constexpr,
    group: tl.constexpr, block: tl.constexpr, splits: tl.constexpr,
) -> None:  # fmt: skip
    """The queries of one head of keys, over some places; the new place is the last.

    The last split turns the new key and stores it, and its value. Who comes last joins
    the splits.
    """
    which, split = tl.program_id(0), tl.program_id(1)
    token, head = which // kv, which % kv
    per: tl.constexpr = heads // kv
    each, last = places // splits, places - 1
    g, h, p = tl.arange(0, group), tl.arange(0, half), tl.arange(0, block)
    base = token.to(tl.int64) * sequence_step + head * head_step
    keys, values, start = keys + base, values + base, split * each
    if EARLY:
        _fetch(keys + (start + p) * (2 * half), 256)
        _fetch(values + (start + p) * (2 * half), 256)
        _after_earlier()
    c = tl.load(cos + token * half + h).to(tl.float32)
    s = tl.load(sin + token * half + h).to(tl.float32)
    row = made + token * ((heads + 2 * kv) * 2 * half)
    q_at = row + (head * per + g[:, None]) * (2 * half) + h[None, :]
    real = g[:, None] < per
    q1 = tl.load(q_at, mask=real, other=0.0)
    q2 = tl.load(q_at + half, mask=real, other=0.0)
    a = _turned(q1, q2, c[None, :], s[None, :], True)
    b = _turned(q1, q2, c[None, :], s[None, :], False)
    most, total, acc1, acc2 = _old_places(
        a, b, keys, values, start, start + each, last, scale, half, group, block
    )
    if split == splits - 1:
        k_new = row + (heads + head) * (2 * half) + h
        k1, k2 = tl.load(k_new), tl.load(k_new + half)
        v_new = k_new + kv * (2 * half)
        v1, v2 = tl.load(v_new), tl.load(v_new + half)
        ka, kb = _turned(k1, k2, c, s, True), _turned(k1, k2, c, s, False)
        _store_halves(keys + last * (2 * half) + h, ka, kb, h < half, half)
        _store_halves(values + last * (2 * half) + h, v1, v2, h < half, half)
        wide = a.to(tl.float32) * ka.to(tl.float32)[None, :]
        wide += b.to(tl.float32) * kb.to(tl.float32)[None, :]
        score = tl.sum(wide, 1) * scale
        now = tl.maximum(most, score)
        weight, shrink = tl.exp2(score - now), tl.exp2(most - now)
        total = total * shrink + weight
        acc1 = acc1 * shrink[:, None] + weight[:, None] * v1.to(tl.float32)[None, :]
        acc2 = acc2 * shrink[:, None] + weight[:, None] * v2.to(tl.float32)[None, :]
        most = now
    _end(
        out + token * (heads * 2 * half) + head * (per * 2 * half),
        sums + which * (splits * group * (2 * half + 2)),
        came + which, split, most, total, acc1, acc2, per, half, group, splits,
    )  # fmt: skip


@triton.jit
def _add_norm(
    x: tl.tensor,
    residual: tl.tensor,
    weight: tl.tensor,
    out: tl.tensor,
    eps: tl.constexpr,
    hidden: tl.constexpr,
    block: tl.constexpr,
) -> None:
    """A row: the residual gets the sum, the output its norm."""
    at = tl.arange(0, block)
    inside = at < hidden
    w = tl.load(weight + at, mask=inside, other=0.0).to(tl.float32)
    if EARLY:
        _after_earlier()
    row = tl.program_id(0) * hidden
    y = tl.load(x + row + at, mask=inside, other=0.0).to(tl.float32)
    y += tl.load(residual + row + at, mask=inside, other=0.0).to(tl.float32)
    total = y.to(residual.dtype.element_ty)
    tl.store(residual + row + at, total, mask=inside)
    wide = total.to(tl.float32)
    scale = 1.0 / tl.sqrt(tl.sum(wide * wide, 0) / hidden + eps)
    tl.store(out + row + at, (wide * scale * w).to(out.dtype.element_ty), mask=inside)


@triton.jit
def _silu_times(
    both: tl.tensor, out: tl.tensor, inner: tl.constexpr, block: tl.constexpr
) -> None:
    """A piece of silu(first half) * second half of a row."""
    if EARLY:
        _after_earlier()
    row, piece = tl.program_id(0), tl.program_id(1)
    at = piece * block + tl.arange(0, block)
    inside = at < inner
    gate = tl.load(both + row * 2 * inner + at, mask=inside).to(tl.float32)
    up = tl.load(both + (row * 2 + 1) * inner + at, mask=inside).to(tl.float32)
    made = _gate(gate, up)
    tl.store(out + row * inner + at, made.to(out.dtype.element_ty), mask=inside)


@triton.jit
def _turn_and_store(
    made: tl.tensor,
    cos: tl.tensor,
    sin: tl.tensor,
    keys: tl.tensor,
    values: tl.tensor,
    heads: tl.constexpr,
    kv: tl.constexpr,
    half: tl.constexpr,
    sequence_step: tl.constexpr,
    head_step: tl.constexpr,
    last: tl.constexpr,
) -> None:
    """One head of a token: a query is turned in place, a key or value goes last."""
    if EARLY:
        _after_earlier()
    token, head = tl.program_id(0), tl.program_id(1)
    at = tl.arange(0, half)
    mine = made + (token * (heads + 2 * kv) + head) * (2 * half)
    a, b = tl.load(mine + at), tl.load(mine + half + at)
    if head < heads + kv:
        c = tl.load(cos + token * half + at).to(tl.float32)
        s = tl.load(sin + token * half + at).to(tl.float32)
        wide_a, wide_b = a.to(tl.float32), b.to(tl.float32)
        a = (wide_a * c - wide_b * s).to(a.dtype)
        b = (wide_b * c + wide_a * s).to(b.dtype)
    if head < heads:
        tl.store(mine + at, a)
        tl.store(mine + half + at, b)
    else:
        row = token * sequence_step + last
        if head < heads + kv:
            place = keys + row + (head - heads) * head_step
            tl.store(place + at, a)
            tl.store(place + half + at, b)
        else:
            place = values + row + (head - heads - kv) * head_step
            tl.store(place + at, a)
            tl.store(place + half + at, b)
