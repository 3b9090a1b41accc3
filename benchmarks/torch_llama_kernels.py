"""Two kernels of a decoding layer, as serving engines have them: in Triton.

Without them a layer is a dozen small kernels of PyTorch, whose time hides what
communication costs. Every variant of a benchmark uses the same ones.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor


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


@triton.jit
def _silu_times(
    both: tl.tensor, out: tl.tensor, inner: tl.constexpr, block: tl.constexpr
) -> None:
    """A piece of silu(first half) * second half of a row."""
    row, piece = tl.program_id(0), tl.program_id(1)
    at = piece * block + tl.arange(0, block)
    inside = at < inner
    gate = tl.load(both + row * 2 * inner + at, mask=inside).to(tl.float32)
    up = tl.load(both + (row * 2 + 1) * inner + at, mask=inside).to(tl.float32)
    made = gate / (1.0 + tl.exp(-gate)) * up
    tl.store(out + row * inner + at, made.to(out.dtype.element_ty), mask=inside)


def turn_and_store(
    made: Tensor, cos: Tensor, sin: Tensor, keys: Tensor, values: Tensor, heads: int
) -> Tensor:
    """Turn queries and keys, put keys and values last in the cache; return queries.

    `made` is (tokens, heads + 2 kv, head); the cache is (sequences, kv, places, head).
    """
    tokens, every, head = made.shape
    kv = (every - heads) // 2
    assert made.is_contiguous(), "heads of a token follow one another"
    assert keys.stride() == values.stride(), "one step serves both"
    sequence_step, head_step, place_step, _ = keys.stride()
    _turn_and_store[(tokens, every)](
        made,
        cos,
        sin,
        keys,
        values,
        heads,
        kv,
        head // 2,
        sequence_step,
        head_step,
        (keys.shape[2] - 1) * place_step,
        num_warps=1,
    )
    return made[:, :heads]


def silu_times(both: Tensor) -> Tensor:
    """Return silu(first half of each row) * its second half."""
    tokens, twice = both.shape
    out = torch.empty(tokens, twice // 2, device=both.device, dtype=both.dtype)
    block = 1024
    pieces = triton.cdiv(twice // 2, block)
    _silu_times[(tokens, pieces)](both, out, twice // 2, block, num_warps=4)
    return out
