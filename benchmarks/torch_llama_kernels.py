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
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor
from torch.nn import functional
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
def _thin(
    x: tl.tensor,
    w: tl.tensor,
    y: tl.tensor,
    sums: tl.tensor,
    came: tl.tensor,
    tokens: tl.tensor,
    rows: tl.tensor,
    columns: tl.tensor,
    block_m: tl.constexpr,
    block_n: tl.constexpr,
    block_k: tl.constexpr,
    splits: tl.constexpr,
    gated: tl.constexpr,
    ahead: tl.constexpr,
) -> None:
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
            acc = tl.zeros([block_n, block_m], tl.float32)
            up = tl.zeros([block_n, block_m], tl.float32)
            for part in tl.static_range(splits):
                at = mine + part * (2 * size)
                acc += tl.load(at, mask=real, other=0.0, cache_modifier=".cg")
                if gated:
                    at += size
                    up += tl.load(at, mask=real, other=0.0, cache_modifier=".cg")
            made = _gate(acc, up) if gated else acc
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
def _attend(
    made: tl.tensor,
    cos: tl.tensor,
    sin: tl.tensor,
    keys: tl.tensor,
    values: tl.tensor,
    out: tl.tensor,
    sums: tl.tensor,
    came: tl.tensor,
    sequence_step: tl.tensor,
    head_step: tl.tensor,
    places: tl.tensor,
    scale: tl.constexpr,
    heads: tl.constexpr,
    kv: tl.constexpr,
    half: tl.constexpr,
    group: tl.constexpr,
    block: tl.constexpr,
    splits: tl.constexpr,
) -> None:
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
    start = split * each
    if EARLY:
        _fetch(keys + base + (start + p) * (2 * half), 256)
        _fetch(values + base + (start + p) * (2 * half), 256)
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
    most = tl.full([group], -1e30, tl.float32)
    total = tl.zeros([group], tl.float32)
    acc1 = tl.zeros([group, half], tl.float32)
    acc2 = tl.zeros([group, half], tl.float32)
    for at in range(start, start + each, block):
        k_at = keys + base + (at + p)[None, :] * (2 * half) + h[:, None]
        v_at = values + base + (at + p)[:, None] * (2 * half) + h[None, :]
        old = (at + p)[None, :] < last
        scores = tl.dot(a, tl.load(k_at))
        scores = tl.dot(b, tl.load(k_at + half), scores)
        scores = tl.where(old, scores * scale, -1e30)
        now = tl.maximum(most, tl.max(scores, 1))
        weight = tl.where(old, tl.exp2(scores - now[:, None]), 0.0)
        shrink = tl.exp2(most - now)
        total = total * shrink + tl.sum(weight, 1)
        narrow = weight.to(made.dtype.element_ty)
        before = old.trans()
        v1 = tl.load(v_at, mask=before, other=0.0)
        v2 = tl.load(v_at + half, mask=before, other=0.0)
        acc1 = tl.dot(narrow, v1, acc1 * shrink[:, None])
        acc2 = tl.dot(narrow, v2, acc2 * shrink[:, None])
        most = now
    if split == splits - 1:
        k_new = row + (heads + head) * (2 * half) + h
        k1, k2 = tl.load(k_new), tl.load(k_new + half)
        v_new = row + (heads + kv + head) * (2 * half) + h
        v1, v2 = tl.load(v_new), tl.load(v_new + half)
        ka, kb = _turned(k1, k2, c, s, True), _turned(k1, k2, c, s, False)
        place = base + last * (2 * half) + h
        tl.store(keys + place, ka)
        tl.store(keys + place + half, kb)
        tl.store(values + place, v1)
        tl.store(values + place + half, v2)
        wide = a.to(tl.float32) * ka.to(tl.float32)[None, :]
        wide += b.to(tl.float32) * kb.to(tl.float32)[None, :]
        score = tl.sum(wide, 1) * scale
        now = tl.maximum(most, score)
        weight, shrink = tl.exp2(score - now), tl.exp2(most - now)
        total = total * shrink + weight
        acc1 = acc1 * shrink[:, None] + weight[:, None] * v1.to(tl.float32)[None, :]
        acc2 = acc2 * shrink[:, None] + weight[:, None] * v2.to(tl.float32)[None, :]
        most = now
    o_at = out + token * (heads * 2 * half) + (head * per + g[:, None]) * (2 * half)
    o_at += h[None, :]
    if splits == 1:
        made_of = out.dtype.element_ty
        tl.store(o_at, (acc1 / total[:, None]).to(made_of), mask=real)
        tl.store(o_at + half, (acc2 / total[:, None]).to(made_of), mask=real)
    else:
        wide_row: tl.constexpr = 2 * half + 2
        mine = sums + (which * splits + split) * (group * wide_row)
        cell = mine + g[:, None] * wide_row + h[None, :]
        tl.store(cell, acc1)
        tl.store(cell + half, acc2)
        tl.store(mine + g * wide_row + 2 * half, most)
        tl.store(mine + g * wide_row + 2 * half + 1, total)
        tl.debug_barrier()
        if tl.atomic_add(came + which, 1, sem="acq_rel") == splits - 1:
            most = tl.full([group], -1e30, tl.float32)
            total = tl.zeros([group], tl.float32)
            acc1 = tl.zeros([group, half], tl.float32)
            acc2 = tl.zeros([group, half], tl.float32)
            for part in tl.static_range(splits):
                theirs = sums + (which * splits + part) * (group * wide_row)
                end = theirs + g * wide_row + 2 * half
                their_most = tl.load(end, cache_modifier=".cg")
                their_total = tl.load(end + 1, cache_modifier=".cg")
                cell = theirs + g[:, None] * wide_row + h[None, :]
                now = tl.maximum(most, their_most)
                shrink, grow = tl.exp2(most - now), tl.exp2(their_most - now)
                acc1 = acc1 * shrink[:, None]
                acc1 += tl.load(cell, cache_modifier=".cg") * grow[:, None]
                acc2 = acc2 * shrink[:, None]
                acc2 += tl.load(cell + half, cache_modifier=".cg") * grow[:, None]
                total = total * shrink + their_total * grow
                most = now
            made_of = out.dtype.element_ty
            tl.store(o_at, (acc1 / total[:, None]).to(made_of), mask=real)
            tl.store(o_at + half, (acc2 / total[:, None]).to(made_of), mask=real)
            tl.store(came + which, 0)


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


class Quick:
    """A kernel whose launches, but for the first of their kind, cost little Python.

    Triton looks at every argument of every launch. Here numbers say which kind it is,
    and addresses that are not as even as those of the first go the long way.
    """

    def __init__(self, kernel: Any, **options: int) -> None:
        self._kernel = kernel
        self._options = {} if INTERPRETED else {**options, "launch_pdl": True}
        self._known: dict[Any, Any] = {}

    def __call__(
        self, grid: tuple[int, int], tensors: tuple[Tensor, ...], *numbers: Any
    ) -> None:
        """Launch it on the current stream."""
        known = self._known.get(numbers)
        addresses = [t.data_ptr() for t in tensors]
        uneven = False
        for at in addresses:
            uneven |= at % 16 != 0
        if known is None or uneven:
            self._slowly(grid, tensors, numbers, keep=not uneven)
            return
        run, function, packed, device = known
        stream = torch._C._cuda_getCurrentRawStream(device)
        run(*grid, 1, stream, function, packed, None, None, None, *addresses, *numbers)

    def _slowly(self, grid: Any, tensors: Any, numbers: Any, *, keep: bool) -> None:
        made = self._kernel[(*grid, 1)](*tensors, *numbers, **self._options)
        if keep and not INTERPRETED:
            device = tensors[0].device.index
            self._known[numbers] = made.run, made.function, made.packed_metadata, device


NORM = Quick(_add_norm, num_warps=8)
GATE = Quick(_silu_times, num_warps=4)
TURN = Quick(_turn_and_store, num_warps=1)
ATTEND = Quick(_attend, num_warps=4, num_stages=2)


def add_norm(x: Tensor, residual: Tensor, weight: Tensor, eps: float) -> Tensor:
    """Return the norm of the sum, and leave the sum in the residual."""
    hidden, out = x.shape[-1], torch.empty_like(x)
    block = 1 << (hidden - 1).bit_length()
    NORM((x.numel() // hidden, 1), (x, residual, weight, out), eps, hidden, block)
    return out


def turn_store_attend(
    made: Tensor, cos: Tensor, sin: Tensor, keys: Tensor, values: Tensor, heads: int
) -> Tensor:
    """Turn and store by one kernel, and attend by PyTorch's: as `Attention` does."""
    tokens, every, head = made.shape
    kv = (every - heads) // 2
    sequence_step, head_step, place_step, _ = keys.stride()
    TURN(
        (tokens, every), (made, cos, sin, keys, values), heads, kv, head // 2,
        sequence_step, head_step, (keys.shape[2] - 1) * place_step,
    )  # fmt: skip
    out = functional.scaled_dot_product_attention(
        made[:, :heads].unsqueeze(2), keys[:tokens], values[:tokens], enable_gqa=True
    )
    return out.reshape(tokens, -1)


def silu_times(both: Tensor) -> Tensor:
    """Return silu(first half of each row) * its second half."""
    tokens, twice = both.shape
    out = torch.empty(tokens, twice // 2, device=both.device, dtype=both.dtype)
    block = 1024
    pieces = triton.cdiv(twice // 2, block)
    GATE((tokens, pieces), (both, out), twice // 2, block)
    return out


class Room:
    """Memory in which parts of results meet, of one device; zeros count who came."""

    def __init__(self, device: torch.device, floats: int, counts: int) -> None:
        self.sums = torch.empty(floats, dtype=torch.float32, device=device)
        self.came = torch.zeros(counts, dtype=torch.int32, device=device)


class Thin:
    """A way to multiply few tokens: sizes of blocks, and how columns are divided."""

    KERNELS: dict[tuple[int, int], Quick] = {}  # noqa: RUF012  (one for all)

    def __init__(
        self, block_m: int, block_n: int, block_k: int, splits: int, stages: int,
        gated: bool, *, ahead: bool = True,
    ) -> None:  # fmt: skip
        self.ahead = ahead
        """Whether a kilobyte of each row is fetched before the kernel before has ended,
        and x can be read."""
        self.block_m, self.block_n, self.block_k = block_m, block_n, block_k
        self.splits, self.gated, self.stages = splits, gated, stages
        kernel = self.KERNELS.get((4, stages))
        if kernel is None:
            kernel = Quick(_thin, num_warps=4, num_stages=stages)
            self.KERNELS[4, stages] = kernel
        self._kernel = kernel
        self._room: Room | None = None

    def __str__(self) -> str:
        """Return it in a word."""
        later = "" if self.ahead else " later"
        return f"{self.block_n}x{self.block_k}/{self.splits}{later}"

    def later(self) -> Thin:
        """Return the same that fetches nothing before x can be read."""
        return Thin(
            self.block_m, self.block_n, self.block_k, self.splits, self.stages,
            self.gated, ahead=False,
        )  # fmt: skip

    def fits(self, tokens: int, rows: int, columns: int) -> bool:
        """Return whether it takes matrices of such a size."""
        each = columns // self.splits
        return (
            tokens <= self.block_m
            and rows % self.block_n == 0
            and columns % self.splits == 0
            and each % self.block_k == 0
            and each * 2 >= 1024
        )

    def __call__(self, x: Tensor, w: Tensor, out: Tensor | None = None) -> Tensor:
        """Return x times w transposed; of a gated one silu(first half) * second."""
        tokens, columns = x.shape
        rows = w.shape[0] // (2 if self.gated else 1)
        y = out
        if y is None:
            y = torch.empty(tokens, rows, device=x.device, dtype=x.dtype)
        tiles = rows // self.block_n
        room = self._room
        if room is None or room.came.numel() < tiles:
            size = 2 * self.block_n * self.block_m * self.splits * tiles
            room = self._room = Room(x.device, size if self.splits > 1 else 4, tiles)
        self._kernel(
            (tiles, self.splits), (x, w, y, room.sums, room.came), tokens, rows,
            columns, self.block_m, self.block_n, self.block_k, self.splits, self.gated,
            self.ahead,
        )  # fmt: skip
        return y


class Attention:
    """Attention of one new place a sequence: over how many splits of the others."""

    def __init__(self, splits: int, block: int = 64) -> None:
        self.splits, self.block = splits, block
        self._room: Room | None = None

    def fits(self, places: int) -> bool:
        """Return whether so many places are divided without a rest."""
        return places % (self.splits * self.block) == 0

    def __call__(
        self, made: Tensor, cos: Tensor, sin: Tensor, keys: Tensor, values: Tensor,
        heads: int,
    ) -> Tensor:  # fmt: skip
        """Turn queries and the new key, store it and its value, and attend to all.

        `made` is (tokens, heads + 2 kv, head); the cache (sequences, kv, places, head).
        """
        tokens, every, head = made.shape
        kv, places = (every - heads) // 2, keys.shape[2]
        assert made.is_contiguous(), "heads of a token follow one another"
        assert keys.stride() == values.stride(), "one step serves both"
        sequence_step, head_step, place_step, _ = keys.stride()
        assert place_step == head, "places of a head follow one another"
        out = torch.empty(tokens, heads * head, device=made.device, dtype=made.dtype)
        room = self._room
        if room is None or room.came.numel() < tokens * kv:
            size = tokens * kv * self.splits * 16 * (head + 2)
            room = self._room = Room(made.device, size, tokens * kv)
        tensors = made, cos, sin, keys, values, out, room.sums, room.came
        scale = head**-0.5 * 1.4426950408889634
        ATTEND(
            (tokens * kv, self.splits), tensors, sequence_step, head_step, places,
            scale, heads, kv, head // 2, 16, self.block, self.splits,
        )  # fmt: skip
        return out
